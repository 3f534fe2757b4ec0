//! The page that test and kernel share: what to attack, and what was done.
//!
//! The test finds the page in the node's memory by [`MAGIC`], and sets [`Orders::go`] last.

use core::sync::atomic::{AtomicU64, Ordering};

/// Beginning of the page.
pub const MAGIC: [u64; 2] = [0x6c69_7473_6f68_2061, 0x8c1f_95d7_3a40_62eb];
/// Size and alignment of the page.
pub const SIZE: u64 = 4096;
/// Cores that it runs on, at most.
pub const CORES: usize = 2;

/// The page.
#[repr(C, align(4096))]
#[derive(Debug)]
pub struct Orders {
    /// [`MAGIC`].
    pub magic: [AtomicU64; 2],
    /// By the test: everything else is written.
    pub go: AtomicU64,
    /// By the test: the seed.
    pub seed: AtomicU64,
    /// By the test: memory of the base, a physical address.
    pub foreign_memory: AtomicU64,
    /// By the test: header of the node's monitor, a physical address; 0 if it has none.
    pub monitor: AtomicU64,
    /// By the test: the node's channels, a physical address in its own memory.
    pub channels: AtomicU64,
    /// By the test: APIC ids of cores of others.
    pub foreign_cores: [AtomicU64; CORES],
    /// By the test: APIC ids of the node's own cores, the first one first.
    pub own_cores: [AtomicU64; CORES],
    /// By the test: number of the node's own cores.
    pub own_count: AtomicU64,
    /// By the kernel: acts of each core.
    pub acts: [AtomicU64; CORES],
    /// By the kernel: number of the last kind of act of each core, and 256 if it was to break out.
    pub last: [AtomicU64; CORES],
    /// By the kernel: it has done everything, and nothing has ended it.
    pub survived: AtomicU64,
}

const _: () = assert!(size_of::<Orders>() as u64 == SIZE);

const fn zero() -> AtomicU64 {
    AtomicU64::new(0)
}

impl Orders {
    /// A page without orders.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            magic: [AtomicU64::new(MAGIC[0]), AtomicU64::new(MAGIC[1])],
            go: zero(),
            seed: zero(),
            foreign_memory: zero(),
            monitor: zero(),
            channels: zero(),
            foreign_cores: [const { zero() }; CORES],
            own_cores: [const { zero() }; CORES],
            own_count: zero(),
            acts: [const { zero() }; CORES],
            last: [const { zero() }; CORES],
            survived: zero(),
        }
    }

    /// Waits for the orders.
    pub fn wait(&self) {
        while self.go.load(Ordering::Acquire) == 0 {
            core::hint::spin_loop();
        }
    }
}

impl Default for Orders {
    fn default() -> Self {
        Self::new()
    }
}

/// The page of this kernel.
pub static ORDERS: Orders = Orders::new();

/// A word of the orders.
#[must_use]
pub fn word(of: &AtomicU64) -> u64 {
    of.load(Ordering::Relaxed)
}
