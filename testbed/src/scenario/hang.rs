//! Making a node's kernel hang, which no stock kernel offers to do for its users.

use insula::driver::Driver;
use insula::node;
use kimage::Symbols;
use kimage::log::{LogLayout, locate};

use super::Finding;

/// The first instruction of the kernel for a rescheduling interrupt, with interrupts off.
const ENTRY: &str = "asm_sysvec_reschedule_ipi";
/// A jump to itself.
const FOREVER: [u8; 2] = [0xeb, 0xfe];

/// Lets the node with this kernel hang on the next rescheduling interrupt that a core of it gets.
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
    let handle = node::find(&Driver::open()?, &name.parse()?)?;
    let mut memory = handle.node.memory()?.map()?;
    let placement = locate(&LogLayout::from_vmlinux(&vmlinux)?, &memory);
    let placement = placement.ok_or_else(|| Finding::new("the kernel is not in its memory"))?;
    let entry = placement.physical + (address(ENTRY)? - address("_text")?);
    let offset = memory.offset_of(entry, FOREVER.len() as u64)?;
    Ok(memory.write(offset, &FOREVER)?)
}
