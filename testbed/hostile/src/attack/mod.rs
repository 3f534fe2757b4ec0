//! The acts, and their order.

mod instruction;
mod interrupt;
mod memory;
mod msr;
mod port;
mod race;
mod register;
mod table;

use core::sync::atomic::Ordering;

use insula_bare::cpu;

use crate::orders::{ORDERS, word};
use crate::random::Random;
use crate::trap::{self, Tables};

/// Acts of a core before it tries to break out.
const PASSES: u64 = 300;
/// Tries to break out: the monitor ends the node at the first that is one.
const TRIES: u64 = 200;
/// In the orders, added to a kind: it was to break out.
pub const BREAK_OUT: u64 = 256;

/// A core, as its acts know it.
#[repr(C)]
#[derive(Debug)]
pub struct Core {
    /// Its index.
    pub index: usize,
    /// Its descriptor tables.
    pub tables: *mut Tables,
    /// Physical address of the memory in which its acts do what they want.
    pub arena: u64,
    /// Its numbers.
    pub random: Random,
}

impl Core {
    /// A core of that index.
    #[must_use]
    pub fn new(index: usize, tables: *mut Tables, arena: u64) -> Self {
        let seed = word(&ORDERS.seed) ^ (index as u64) << 56;
        Self {
            index,
            tables,
            arena,
            random: Random::new(seed),
        }
    }

    /// APIC id of a core of the node, perhaps the calling one.
    fn own_core(&mut self) -> u64 {
        let count = word(&ORDERS.own_count).clamp(1, 2);
        word(&ORDERS.own_cores[self.random.below(count) as usize])
    }

    /// APIC id of a core of somebody else.
    fn foreign_core(&mut self) -> u64 {
        let chosen = self.random.below(2) as usize;
        word(&ORDERS.foreign_cores[chosen])
    }
}

/// A kind of acts: what a node may do, or hurts only itself by; and what it must not do.
#[derive(Clone, Copy)]
struct Kind {
    pass: extern "C" fn(&mut Core),
    break_out: extern "C" fn(&mut Core),
}

const KINDS: [Kind; 8] = [
    Kind {
        pass: memory::pass,
        break_out: memory::break_out,
    },
    Kind {
        pass: port::pass,
        break_out: port::break_out,
    },
    Kind {
        pass: msr::pass,
        break_out: msr::break_out,
    },
    Kind {
        pass: interrupt::pass,
        break_out: interrupt::break_out,
    },
    Kind {
        pass: instruction::pass,
        break_out: instruction::break_out,
    },
    Kind {
        pass: table::pass,
        break_out: table::break_out,
    },
    Kind {
        pass: register::pass,
        break_out: register::break_out,
    },
    Kind {
        pass: race::pass,
        break_out: race::break_out,
    },
];

/// Names of the kinds, by the numbers in the orders.
pub const NAMES: [&str; KINDS.len()] = [
    "memory",
    "port",
    "msr",
    "interrupt",
    "instruction",
    "table",
    "register",
    "race",
];

/// Runs a core's acts to the end.
pub fn run(mut core: Core) -> ! {
    // Half of the seeds mix all kinds, the others have one that they stay with.
    let only = core
        .random
        .once_in(2)
        .then(|| core.random.below(KINDS.len() as u64));
    for _ in 0..PASSES {
        act(&mut core, only, false);
    }
    // One core tries to break out while the other one goes on.
    let breaks_out = core.index == 0 || core.random.once_in(4);
    for _ in 0..TRIES {
        act(&mut core, only, breaks_out);
    }
    match core.index {
        0 => {
            ORDERS.survived.store(1, Ordering::Release);
            trap::triple_fault()
        }
        _ => cpu::halt_forever(),
    }
}

fn act(core: &mut Core, only: Option<u64>, breaks_out: bool) {
    let number = only.unwrap_or_else(|| core.random.below(KINDS.len() as u64));
    let kind = KINDS[number as usize % KINDS.len()];
    let told = number + if breaks_out { BREAK_OUT } else { 0 };
    ORDERS.last[core.index].store(told, Ordering::Relaxed);
    ORDERS.acts[core.index].fetch_add(1, Ordering::Relaxed);
    // An exception only ends the act.
    let _ = trap::attempt(
        core,
        if breaks_out {
            kind.break_out
        } else {
            kind.pass
        },
    );
}
