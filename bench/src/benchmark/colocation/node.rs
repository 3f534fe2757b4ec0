//! The lightweight kernel's node, and how soon it handles an interrupt.

use std::fs;
use std::mem::offset_of;
use std::time::Instant;

use insula_abi::lwk::{COUNTERS_PAGES, Core, Delegation, LWK_MAGIC, PAGE_SIZE};
use insula_driver::Mapping;
use testbed::base::Finding;

use super::{LIMIT, NODE, PARAMETERS, TICKS};
use crate::inside::Inside;

/// What marks a core that is a monitor's guest for the module: `INSULA_MONITOR_SHARE_ID` (kmod/node/monitor_share.h).
const SHARED_BY_MONITOR: u64 = 1 << 30;

/// A node of the lightweight kernel, and the words of its first core.
pub(super) struct Node<'a> {
    pub(super) inside: &'a Inside,
    memory: Mapping,
    /// Physical address of the words.
    core: u64,
    ring: Ring,
}

/// How the node is rung.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ring {
    /// By an interrupt.
    Interrupt,
    /// By the module, as no interrupt of its own enters it.
    Module,
    /// The same, by the core's monitor.
    Monitor,
}

impl<'a> Node<'a> {
    pub(super) fn start(inside: &'a Inside, words: &[&str], ring: Ring) -> Result<Self, Finding> {
        let usual = ["--image", "lwk", "--memory", "64M"];
        inside.command.start(NODE, &[&usual[..], words].concat())?;
        // A core publishes its words when it first enters a program.
        inside.command.run(&["exec", NODE, "--", "true"])?;
        let name = NODE.parse::<insula_driver::name::Name>()?.to_abi();
        let memory = inside
            .driver
            .open_node(&name)?
            .memory()?
            .map_for_reading()?;
        let area = find_area(&memory)?;
        let node = Self {
            core: area + (1 + u64::from(COUNTERS_PAGES)) * PAGE_SIZE,
            memory,
            inside,
            ring,
        };
        node.wait_for(offset_of!(Core, doorbell), "its core")?;
        Ok(node)
    }

    /// Rings it, and returns how long it took until each was handled, in cycles.
    pub(super) fn ring(&self, rounds: usize) -> Result<Vec<u64>, Finding> {
        let doorbell = self.word(offset_of!(Core, doorbell))?;
        let word = self.core + offset_of!(Core, interrupted_at) as u64;
        for (name, value) in [
            ("apic_id", self.apic_id(doorbell)),
            ("vector", doorbell & 0xff),
            ("word", word),
            ("by_nmi", u64::from(self.ring != Ring::Interrupt)),
            ("rounds", rounds as u64),
        ] {
            fs::write(format!("{PARAMETERS}/{name}"), value.to_string())?;
        }
        let ticks = fs::read(TICKS)?;
        let words = ticks.as_chunks().0.iter();
        Ok(words.map(|word| u64::from_ne_bytes(*word)).collect())
    }

    /// Measures rounds, and records them. Returns the median, in cycles.
    pub(super) fn measure(&self, row: &str, rounds: usize) -> Result<f64, Finding> {
        let mut times = self.ring(rounds)?;
        times.sort_unstable();
        let (Some(worst), median) = (times.last(), times[times.len() / 2]) else {
            return Err(Finding::new("nothing was measured"));
        };
        let row = format!("colocation.{row}");
        let mean = times.iter().sum::<u64>() as f64 / times.len() as f64;
        self.inside.record(&row, mean)?;
        self.inside
            .record(&format!("{row}-median"), median as f64)?;
        self.inside.record(&format!("{row}-worst"), *worst as f64)?;
        Ok(median as f64)
    }

    /// The core by which the driver rings a doorbell.
    fn apic_id(&self, doorbell: u64) -> u64 {
        let core = doorbell >> insula_abi::channel::DOORBELL_APIC_SHIFT & 0xffff_ffff;
        match self.ring {
            Ring::Interrupt | Ring::Module => core,
            Ring::Monitor => core | SHARED_BY_MONITOR,
        }
    }

    pub(super) fn wait_for_program(&self) -> Result<(), Finding> {
        self.wait_for(offset_of!(Core, running), "its program")
    }

    /// Waits until a word of the core is not 0.
    fn wait_for(&self, offset: usize, what: &str) -> Result<(), Finding> {
        let began = Instant::now();
        while self.word(offset)? == 0 {
            Finding::unless(began.elapsed() < LIMIT, || format!("waited for {what}"))?;
            std::thread::yield_now();
        }
        Ok(())
    }

    fn word(&self, offset: usize) -> Result<u64, Finding> {
        let mut word = [0; 8];
        let at = self.memory.offset_of(self.core + offset as u64, 8)?;
        self.memory.read(at, &mut word)?;
        Ok(u64::from_ne_bytes(word))
    }

    pub(super) fn remove(self) -> Result<(), Finding> {
        self.inside.command.run(&["rm", "--force", NODE]).map(drop)
    }
}

/// Physical address of the delegation area: of the page that begins with its magic number.
fn find_area(memory: &Mapping) -> Result<u64, Finding> {
    let magic = offset_of!(Delegation, magic) as u64;
    let pages = memory
        .chunks()
        .flat_map(|chunk| (chunk.start..chunk.start + chunk.size).step_by(PAGE_SIZE as usize));
    for page in pages {
        let mut word = [0; 8];
        memory.read(memory.offset_of(page + magic, 8)?, &mut word)?;
        if u64::from_ne_bytes(word) == LWK_MAGIC {
            return Ok(page);
        }
    }
    Err(Finding::new("there is no delegation area"))
}
