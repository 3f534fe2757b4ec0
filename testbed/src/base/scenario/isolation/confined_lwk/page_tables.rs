//! What a hostile kernel could write into its programs' page tables: an entry that the base has cleared,
//! and one that permits more than the base does. The scenario writes them, in the node's memory.
//!
//! On a trusted node both take effect, so that these are attacks. On a confined one they end the node.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::mem::offset_of;
use std::process::{Child, Stdio};
use std::sync::atomic::Ordering;

use insula_abi::lwk::{LWK_MAGIC, PAGE_SIZE, PAGES_MAX, PROCESS_PAGE, PTE_BASE, Process};
use insula_driver::name::Name;
use insula_driver::{Driver, Mapping};
use nix::unistd::Pid;

use super::CONFINED;
use crate::base::Finding;
use crate::base::support::insula_command::{
    assert_equal, command, insula, insula_json, text, wait_for,
};

const NODE: &str = "hostile";
const PATH: &str = "/dev/shm/attacked";
const PRESENT: u64 = 1 << 0;
const WRITABLE: u64 = 1 << 1;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
/// Bit of a page fault's error code: it was a write.
const FAULT_WRITE: u64 = 1 << 1;

/// Reads a byte of a file, tells where, waits for a line, and reads or writes the byte again.
const PROGRAM: &str = r#"
import ctypes, mmap, os, sys
pages = mmap.mmap(os.open(sys.argv[1], os.O_RDWR), 4096)
byte = ctypes.c_char.from_buffer(pages)
before = byte.value
print(ctypes.addressof(byte), before.decode(), flush=True)
sys.stdin.readline()
if sys.argv[2] == "write":
    byte.value = b"!"
print(byte.value.decode(), flush=True)
os._exit(0)
"#;

/// What the kernel does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attack {
    /// It restores an entry that the base has cleared.
    Restore,
    /// It makes an entry writable.
    Write,
}

/// All attacks, on both kinds of node.
pub(super) fn are_not_believed() -> Result<(), Finding> {
    for attack in [Attack::Restore, Attack::Write] {
        for isolation in [&[][..], &CONFINED] {
            let played = play(attack, isolation);
            played.map_err(|finding| finding.when(&format!("{attack:?} {isolation:?}")))?;
        }
    }
    Ok(())
}

fn play(attack: Attack, isolation: &[&str]) -> Result<(), Finding> {
    fs::write(PATH, [b'a'; PAGE_SIZE as usize])?;
    let words = ["run", "--image", "lwk", "--cpus", "1", "--memory", "128M"];
    insula(&[&words[..], isolation, &["--name", NODE]].concat())?;
    let mut victim = Victim::start(attack)?;
    let mut table = Table::of(&victim)?;
    let entry = table.entry(victim.address)?;
    let granted = entry & (PRESENT | WRITABLE | PTE_BASE);
    assert_equal("the base's entry", &granted, &(PRESENT | PTE_BASE))?;
    match attack {
        Attack::Restore => {
            File::options().write(true).open(PATH)?.set_len(0)?;
            assert_equal("the entry of no page", &table.entry(victim.address)?, &0)?;
            table.set_entry(victim.address, entry)?;
        }
        Attack::Write => table.set_entry(victim.address, entry | WRITABLE)?,
    }
    match isolation {
        [] => takes_effect(attack, &mut victim)?,
        _ => ends_the_node(attack, &mut victim, entry & ADDRESS)?,
    }
    drop(table);
    insula(&["rm", "--force", NODE])?;
    victim.program.wait()?;
    fs::remove_file(PATH)?;
    Ok(())
}

fn takes_effect(attack: Attack, victim: &mut Victim) -> Result<(), Finding> {
    let line = victim.go_on()?;
    let status = victim.program.wait()?;
    Finding::unless(status.success(), || {
        format!("the program on the trusted node: {status}")
    })?;
    match attack {
        // What it reads is the base's business by now.
        Attack::Restore => Ok(()),
        Attack::Write => assert_equal("the byte", &line.as_str(), &"!\n"),
    }
}

fn ends_the_node(attack: Attack, victim: &mut Victim, frame: u64) -> Result<(), Finding> {
    victim.send_line()?;
    let view = wait_for("the node to end", || {
        let view = insula_json(&["inspect", NODE])?[0].clone();
        Ok((view["state"] == "stopped").then_some(view))
    })?;
    assert_equal("reason", &view["reason"].as_str(), &Some("violation"))?;
    let ended = &view["monitor"]["ended"];
    assert_equal("what ended it", &text(&ended["kind"]).as_str(), &"memory")?;
    assert_equal("subject", &text(&ended["subject"]), &format!("{frame:#x}"))?;
    let error = text(&ended["value"]);
    let error = u64::from_str_radix(error.trim_start_matches("0x"), 16)?;
    let is_write = error & FAULT_WRITE != 0;
    assert_equal("whether it wrote", &is_write, &(attack == Attack::Write))?;
    if attack == Attack::Write {
        assert_equal("the file's first byte", &fs::read(PATH)?[0], &b'a')?;
    }
    Ok(())
}

/// A program of the node that has read the page, and waits.
struct Victim {
    program: Child,
    output: BufReader<std::process::ChildStdout>,
    /// Address of the page.
    address: u64,
}

impl Victim {
    fn start(attack: Attack) -> Result<Self, Finding> {
        let does = if attack == Attack::Write {
            "write"
        } else {
            "read"
        };
        let words = [
            "exec",
            NODE,
            "--",
            "/usr/bin/python3",
            "-c",
            PROGRAM,
            PATH,
            does,
        ];
        let program = command(&words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut program = program?;
        let output = program.stdout.take();
        let output = output.ok_or_else(|| Finding::new("the program has no output"))?;
        let mut victim = Self {
            program,
            output: BufReader::new(output),
            address: 0,
        };
        let line = victim.line()?;
        let (address, byte) = line.trim().split_once(' ').unwrap_or_default();
        assert_equal("the byte", &byte, &"a")?;
        victim.address = address.parse()?;
        Ok(victim)
    }

    fn line(&mut self) -> Result<String, Finding> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line)
    }

    fn send_line(&mut self) -> Result<(), Finding> {
        let input = self.program.stdin.as_mut();
        let input = input.ok_or_else(|| Finding::new("the program has no input"))?;
        Ok(input.write_all(b"\n")?)
    }

    /// Has it make its access. Returns what it finds.
    fn go_on(&mut self) -> Result<String, Finding> {
        self.send_line()?;
        self.line()
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.program.id() as i32)
    }
}

/// The page table of a program, in the node's memory.
struct Table {
    memory: Mapping,
    /// Physical address of its root.
    root: u64,
}

impl Table {
    fn of(victim: &Victim) -> Result<Self, Finding> {
        let node = Driver::open()?.open_node(&NODE.parse::<Name>()?.to_abi())?;
        let memory = node.memory()?.map()?;
        let area = Self::find_area(&memory)?;
        for page in u64::from(PROCESS_PAGE)..u64::from(PAGES_MAX) {
            let process = area + page * PAGE_SIZE;
            let word = |offset: usize| Self::word(&memory, process + offset as u64);
            let Ok(pid) = word(offset_of!(Process, pid)) else {
                break;
            };
            if pid == victim.pid().as_raw() as u64 {
                let root = word(offset_of!(Process, page_table))?;
                return Ok(Self { memory, root });
            }
        }
        Err(Finding::new("the program is not in the delegation area"))
    }

    /// The delegation area: the page that begins with its magic number.
    fn find_area(memory: &Mapping) -> Result<u64, Finding> {
        let pages = memory
            .chunks()
            .flat_map(|chunk| (chunk.start..chunk.start + chunk.size).step_by(PAGE_SIZE as usize));
        let mut found = pages.filter(|&page| Self::word(memory, page).ok() == Some(LWK_MAGIC));
        found
            .next()
            .ok_or_else(|| Finding::new("there is no delegation area"))
    }

    fn word(memory: &Mapping, address: u64) -> Result<u64, Finding> {
        let offset = memory.offset_of(address, 8)?;
        Ok(memory.word(offset)?.load(Ordering::SeqCst))
    }

    /// Physical address of the lowest entry for an address.
    fn place(&self, address: u64) -> Result<u64, Finding> {
        let mut table = self.root & ADDRESS;
        for level in [4, 3, 2] {
            let index = address >> (12 + 9 * (level - 1)) & 0x1ff;
            let entry = Self::word(&self.memory, table + 8 * index)?;
            Finding::unless(entry & PRESENT != 0, || {
                format!("no table of level {level} for {address:#x}")
            })?;
            table = entry & ADDRESS;
        }
        Ok(table + 8 * (address >> 12 & 0x1ff))
    }

    fn entry(&self, address: u64) -> Result<u64, Finding> {
        Self::word(&self.memory, self.place(address)?)
    }

    fn set_entry(&mut self, address: u64, entry: u64) -> Result<(), Finding> {
        let offset = self.memory.offset_of(self.place(address)?, 8)?;
        self.memory.word(offset)?.store(entry, Ordering::SeqCst);
        Ok(())
    }
}
