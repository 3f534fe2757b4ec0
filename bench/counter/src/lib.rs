//! QEMU plugin that counts what an emulated core executes between marks of a program.
//!
//! Times in emulation say little about hardware, but executed instructions do: how often a core
//! leaves its program for the kernel, how many instructions it executes there, how many cache lines
//! of code and data it touches on the way. No kernel can count all of that itself, and the compared
//! kernels count differently.
//!
//! A program that is to be counted executes a [mark](insula_bench::marks), an instruction that does
//! nothing, before and after. When QEMU translates a block of code, the plugin registers callbacks
//! for each execution of the block, and of each mark in it; each core has a `Core` that counts
//! while a window is open. Addresses in the upper half count as the kernel's, as in all x86-64
//! kernels, those in the lower half as user code. At the end of a window one line goes to the file
//! `out=` (see [`insula_bench::marks::Count`]).
//!
//! Some marks enclose what another core does, `path-core=`: there each path from a program into a kernel is a
//! window, if it gets to the address `path-end=`.
//!
//! With `lines=on` each memory access is recorded, too, which makes the machine many times slower.

mod core;
mod qemu;

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use insula_bench::marks::{Count, Edge, MARK_BYTES, Machine, Mark};

use self::core::{Block, Core, Scope};

/// More cores than the testbed's machines have.
const CORES: usize = 64;

/// Addresses of this project's code: of its kernels (bare/image.ld), where Linux' image is but by a rare chance of its
/// randomized addresses, and of the base's modules, of which hardly another one is executed while paths are
/// counted (kernel: Documentation/arch/x86/x86_64/mm.rst).
const OURS: [RangeInclusive<u64>; 2] = [
    0xffff_ffff_8100_0000..=0xffff_ffff_813f_ffff,
    0xffff_ffff_c000_0000..=0xffff_ffff_feff_ffff,
];

/// State of the plugin while the machine runs.
struct Counter {
    cores: [Mutex<Core>; CORES],
    out: File,
    scope: Scope,
    /// The core whose paths are counted.
    path_core: u32,
    /// Instructions that were translated so far.
    translated: AtomicU64,
}

static COUNTER: OnceLock<Counter> = OnceLock::new();

impl Counter {
    /// Reads the plugin's arguments, `NAME=VALUE` each.
    fn new<'a>(arguments: impl Iterator<Item = &'a str>) -> io::Result<Self> {
        let (mut out, mut scope, mut path_core) = (None, Scope::default(), 0);
        for argument in arguments {
            match argument.split_once('=') {
                Some(("out", path)) => {
                    out = Some(OpenOptions::new().create(true).append(true).open(path)?);
                }
                Some(("lines", value)) => scope.lines = value == "on",
                Some(("path-core", value)) => path_core = number(value)?,
                Some(("path-end", value)) => scope.path_end = number(value)?,
                _ => return Err(io::Error::other(format!("`{argument}` means nothing"))),
            }
        }
        Ok(Self {
            cores: std::array::from_fn(|_| Mutex::default()),
            out: out.ok_or_else(|| io::Error::other("no file: out=PATH"))?,
            scope,
            path_core,
            translated: AtomicU64::new(0),
        })
    }

    /// Runs `act` on the core, if there is room for one of that number.
    fn on<Answer>(&self, core: u32, act: impl FnOnce(&mut Core) -> Answer) -> Option<Answer> {
        let core = self.cores.get(core as usize)?;
        Some(act(&mut core
            .lock()
            .unwrap_or_else(PoisonError::into_inner)))
    }

    /// Returns the counts of all cores so far.
    fn machine(&self) -> Machine {
        let executed = |core| self.on(core, |core| core.executed()).unwrap_or_default();
        Machine {
            executed: (0..CORES as u32).map(executed).sum(),
            translated: self.translated.load(Ordering::Relaxed),
            cores: std::array::from_fn(|core| executed(core as u32)),
        }
    }

    /// Handles a mark that a core has executed.
    fn marked(&self, core: u32, mark: Mark) {
        if mark.kind.is_of_paths() {
            let kind = (mark.edge == Edge::Begin).then_some(mark.kind);
            self.on(self.path_core, |core| core.count_paths(kind));
            return;
        }
        let machine = self.machine();
        let count = self.on(core, |core| match mark.edge {
            Edge::Begin => {
                core.begin(mark.kind, machine);
                None
            }
            Edge::End => core.end(mark.kind, machine),
        });
        if let Some(count) = count.flatten() {
            self.write(&count);
        }
    }

    /// Writes the counts of a window.
    fn write(&self, count: &Count) {
        let written = serde_json::to_vec(count).map_err(io::Error::from);
        let written = written.and_then(|mut line| {
            line.push(b'\n');
            (&self.out).write_all(&line)
        });
        if let Err(error) = written {
            qemu::log(&format!("counter: a window is lost: {error}\n"));
        }
    }
}

/// Registers the callbacks for a translated block.
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
        if counter.scope.lines && is_of_kernel(instruction.address()) {
            instruction.on_access();
        }
    }
    counter
        .translated
        .fetch_add(instructions, Ordering::Relaxed);
    // QEMU never reports when it drops a translation.
    block.on_execution(Box::leak(Box::new(Block {
        is_of_kernel: is_of_kernel(block.address()),
        is_ours: OURS.iter().any(|ours| ours.contains(&block.address())),
        instructions,
        addresses: block.address()..end,
    })));
}

fn mark_at(instruction: &qemu::Instruction<'_>) -> Option<Mark> {
    Mark::of(instruction.bytes::<MARK_BYTES>()?)
}

fn number<Number: std::str::FromStr>(text: &str) -> io::Result<Number> {
    let parsed = text.parse();
    parsed.map_err(|_| io::Error::other(format!("`{text}` is no number")))
}

fn is_of_kernel(address: u64) -> bool {
    address >> 63 != 0
}

fn executed(core: u32, block: &Block) {
    if let Some(counter) = COUNTER.get() {
        let ended = counter.on(core, |core| core.execute(block, counter.scope));
        if let Some(count) = ended.flatten() {
            counter.write(&count);
        }
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

/// Starts the plugin with these arguments.
fn install<'a>(arguments: impl Iterator<Item = &'a str>) -> Result<(), String> {
    let counter = Counter::new(arguments).map_err(|error| error.to_string())?;
    let set = COUNTER.set(counter);
    set.map_err(|_| "it is loaded already".to_owned())
}
