//! Makes a node's kernel hang, for which stock kernels have no interface.

use std::thread::sleep;
use std::time::{Duration, Instant};

use insula_driver::{Driver, Mapping};
use insula_node as node;
use kimage::Symbols;
use kimage::log::{LogLayout, Placement, locate, resched_count};

use crate::base::Finding;
use crate::base::support::insula_command::TIMEOUT;

/// Where it hangs: entry of the kernel's handler of rescheduling interrupts, with interrupts off.
pub const HANG_SYMBOL: &str = "asm_sysvec_reschedule_ipi";
/// A jump to itself.
const JUMP_TO_SELF: [u8; 2] = [0xeb, 0xfe];
/// Number of handled interrupts after which the supervisor's health probe is known to work: the
/// supervisor sends the second when it has found the first one handled.
const PROBED: u32 = 2;
/// Interval of checks.
const INTERVAL: Duration = Duration::from_millis(100);

/// Makes the node with this kernel hang on the next rescheduling interrupt of one of its cores;
/// first waits until its supervisor's health probe works.
///
/// # Errors
/// When the node, its memory or the kernel in it cannot be found.
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
    wait_for_health_probe(&layout, placement, &memory)?;
    let entry = placement.physical + (address(HANG_SYMBOL)? - address("_text")?);
    let offset = memory.offset_of(entry, JUMP_TO_SELF.len() as u64)?;
    Ok(memory.write(offset, &JUMP_TO_SELF)?)
}

fn wait_for_health_probe(
    layout: &LogLayout,
    placement: Placement,
    memory: &Mapping,
) -> Result<(), Finding> {
    let began = Instant::now();
    while resched_count(layout, placement, memory)? < Some(PROBED) {
        Finding::unless(began.elapsed() < TIMEOUT, || {
            "the node takes no interrupts".into()
        })?;
        sleep(INTERVAL);
    }
    Ok(())
}
