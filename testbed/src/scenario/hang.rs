//! Making a node's kernel hang, which no stock kernel offers to do for its users.

use std::thread::sleep;
use std::time::{Duration, Instant};

use insula::driver::{Driver, Mapping};
use insula::node;
use kimage::Symbols;
use kimage::log::{LogLayout, Placement, locate, pulse};

use super::Finding;
use super::insula_command::PATIENCE;

/// Where it hangs: the first instruction of the kernel for a rescheduling interrupt, with
/// interrupts off.
pub const HANG_SYMBOL: &str = "asm_sysvec_reschedule_ipi";
/// A jump to itself.
const FOREVER: [u8; 2] = [0xeb, 0xfe];
/// Interrupts that a node has taken once its supervisor knows that it takes them: the supervisor
/// sends the second when it has found the first one taken.
const KNOWN_ALIVE: u32 = 2;
/// How often that is looked at.
const INTERVAL: Duration = Duration::from_millis(100);

/// Lets the node with this kernel hang on the next rescheduling interrupt that a core of it gets;
/// first waits until its supervisor has felt its pulse.
///
/// # Errors
/// When the node, its memory or the kernel in it cannot be had.
pub fn hang(name: &str, kernel: &[u8]) -> Result<(), Finding> {
    let vmlinux = kimage::vmlinux(kernel)?;
    let symbols = Symbols::from_vmlinux(&vmlinux)?;
    let address = |symbol| {
        let found = symbols.address(symbol);
        found.ok_or_else(|| Finding::new(format!("the kernel has no symbol {symbol}")))
    };
    let layout = LogLayout::from_vmlinux(&vmlinux)?;
    let handle = node::find(&Driver::open()?, &name.parse()?)?;
    let mut memory = handle.node.memory()?.map()?;
    let placement = locate(&layout, &memory);
    let placement = placement.ok_or_else(|| Finding::new("the kernel is not in its memory"))?;
    wait_for_pulse(&layout, placement, &memory)?;
    let entry = placement.physical + (address(HANG_SYMBOL)? - address("_text")?);
    let offset = memory.offset_of(entry, FOREVER.len() as u64)?;
    Ok(memory.write(offset, &FOREVER)?)
}

fn wait_for_pulse(
    layout: &LogLayout,
    placement: Placement,
    memory: &Mapping,
) -> Result<(), Finding> {
    let began = Instant::now();
    while pulse(layout, placement, memory)? < Some(KNOWN_ALIVE) {
        Finding::unless(began.elapsed() < PATIENCE, || {
            "the node takes no interrupts".into()
        })?;
        sleep(INTERVAL);
    }
    Ok(())
}
