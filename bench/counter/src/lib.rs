//! A plugin of QEMU that counts what an emulated core executes while a program asks for it.
//!
//! Time in emulation says little of hardware, but what is executed does: how often a core leaves
//! its program for the kernel, how many instructions it executes there, how many cache lines of
//! code and data it touches on the way. No kernel can tell all that of itself, and none of those
//! that are compared tells it like the others.
//!
//! A program that is to be counted executes a [mark](insula_bench::marks), an instruction that does
//! nothing, before and after. When QEMU translates a block of code, the plugin has itself called
//! whenever that is executed, and whenever a mark in it is; each core has a [`Core`] that counts
//! while a window is open. What lies in the upper half of the addresses is taken for the kernel, as
//! on all kernels for x86-64, and for user code what lies in the lower. At the end of a window one
//! line goes to the file `out=` (see [`insula_bench::marks::Count`]).
//!
//! With `lines=on` each access to memory is looked at, too, which makes the machine many times
//! slower.

mod core;
mod qemu;

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::sync::{Mutex, OnceLock, PoisonError};

use insula_bench::marks::{Edge, MARK_BYTES, Mark};

use self::core::{Block, Core};

/// More cores than the test bed's machines have.
const CORES: usize = 64;

/// What is done while the machine runs.
struct Counter {
    cores: [Mutex<Core>; CORES],
    out: File,
    lines: bool,
}

static COUNTER: OnceLock<Counter> = OnceLock::new();

impl Counter {
    /// By the plugin's arguments, `NAME=VALUE` each.
    fn new<'a>(arguments: impl Iterator<Item = &'a str>) -> io::Result<Self> {
        let (mut out, mut lines) = (None, false);
        for argument in arguments {
            match argument.split_once('=') {
                Some(("out", path)) => {
                    out = Some(OpenOptions::new().create(true).append(true).open(path)?);
                }
                Some(("lines", value)) => lines = value == "on",
                _ => return Err(io::Error::other(format!("`{argument}` means nothing"))),
            }
        }
        Ok(Self {
            cores: std::array::from_fn(|_| Mutex::default()),
            out: out.ok_or_else(|| io::Error::other("no file: out=PATH"))?,
            lines,
        })
    }

    /// Lets a core be changed, if there is room for one of that number.
    fn on<Answer>(&self, core: u32, act: impl FnOnce(&mut Core) -> Answer) -> Option<Answer> {
        let core = self.cores.get(core as usize)?;
        Some(act(&mut core
            .lock()
            .unwrap_or_else(PoisonError::into_inner)))
    }

    /// A core has come to a mark.
    fn marked(&self, core: u32, mark: Mark) {
        let count = self.on(core, |core| match mark.edge {
            Edge::Begin => {
                core.begin(mark.kind);
                None
            }
            Edge::End => core.end(mark.kind),
        });
        let Some(count) = count.flatten() else {
            return;
        };
        let written = serde_json::to_vec(&count).map_err(io::Error::from);
        let written = written.and_then(|mut line| {
            line.push(b'\n');
            (&self.out).write_all(&line)
        });
        if let Err(error) = written {
            qemu::say(&format!("counter: a window is lost: {error}\n"));
        }
    }
}

/// A block has been translated: whatever of it is to be told when it is executed.
fn translated(block: &qemu::Block<'_>) {
    let Some(counter) = COUNTER.get() else {
        return;
    };
    let (mut instructions, mut end) = (0, block.address());
    for instruction in block.instructions() {
        instructions += 1;
        end = instruction.address() + instruction.size() as u64;
        if let Some(mark) = mark_at(&instruction) {
            instruction.on_execution(mark.code());
        }
        if counter.lines && is_of_kernel(instruction.address()) {
            instruction.on_access();
        }
    }
    // As long as QEMU keeps the translation; it never says when it drops it.
    block.on_execution(Box::leak(Box::new(Block {
        is_of_kernel: is_of_kernel(block.address()),
        instructions,
        addresses: block.address()..end,
    })));
}

fn mark_at(instruction: &qemu::Instruction<'_>) -> Option<Mark> {
    let bytes: [u8; MARK_BYTES] = instruction.bytes().try_into().ok()?;
    Mark::of(bytes)
}

fn is_of_kernel(address: u64) -> bool {
    address >> 63 != 0
}

fn executed(core: u32, block: &Block) {
    if let Some(counter) = COUNTER.get() {
        counter.on(core, |core| core.execute(block, counter.lines));
    }
}

fn mark_executed(core: u32, code: u32) {
    if let (Some(counter), Some(mark)) = (COUNTER.get(), Mark::of_code(code)) {
        counter.marked(core, mark);
    }
}

fn accessed(core: u32, address: u64) {
    if let Some(counter) = COUNTER.get() {
        counter.on(core, |core| core.access(address));
    }
}

/// Begins with these arguments.
fn install<'a>(arguments: impl Iterator<Item = &'a str>) -> Result<(), String> {
    let counter = Counter::new(arguments).map_err(|error| error.to_string())?;
    let set = COUNTER.set(counter);
    set.map_err(|_| "it is loaded already".to_owned())
}
