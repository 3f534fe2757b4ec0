//! The interrupt descriptor table.

use super::{Check, Round};
use crate::finding::{Finding, Kind};
use crate::repair::Repair;
use crate::target::Kernel;
use kimage::running::RunningError;

/// Vectors of a table (Intel SDM volume 3, 6.10), and the size of a gate.
const VECTORS: usize = 256;
const GATE_SIZE: usize = 16;
/// Size of the boot's handlers: one for each exception (arch/x86/include/asm/segment.h).
const EARLY_HANDLERS_SIZE: u64 = 32 * 13;

/// Compares each gate with what it was at the first look, and its handler with the code that
/// handlers are in.
#[derive(Debug, Default)]
pub(super) struct InterruptTable {
    first: Option<Vec<u8>>,
}

impl Check for InterruptTable {
    fn name(&self) -> &'static str {
        "interrupt table"
    }

    fn look(&mut self, round: &Round<'_>) -> Result<Vec<Finding>, RunningError> {
        let kernel = round.target.kernel;
        let mut table = vec![0; VECTORS * GATE_SIZE];
        let address = kernel.symbol("idt_table")?;
        kernel.read(address, &mut table)?;
        let entry = kernel.symbol("__entry_text_start")?..kernel.symbol("__entry_text_end")?;
        // Exceptions that no processor raises keep the handlers of the boot.
        let early = kernel.symbol("early_idt_handler_array")?;
        let early = early..early + EARLY_HANDLERS_SIZE;
        let first = self.first.get_or_insert_with(|| table.clone());
        let gates = table
            .chunks_exact(GATE_SIZE)
            .zip(first.chunks_exact(GATE_SIZE));
        let changed = gates.enumerate().filter_map(|(vector, (gate, first))| {
            let handler = handler(gate)?;
            let is_own = entry.contains(&handler) || early.contains(&handler);
            let is_foreign = handler != 0 && !is_own;
            let place = address.wrapping_add((vector * GATE_SIZE) as u64);
            let repair = (gate != first).then(|| Repair::of_bytes(place, gate, first));
            let is_wrong = is_foreign || repair.is_some();
            is_wrong.then(|| finding(kernel, vector, handler).with_repair(repair))
        });
        Ok(changed.collect())
    }
}

/// The address in a gate.
fn handler(gate: &[u8]) -> Option<u64> {
    let [low, high] = [gate.get(0..2)?, gate.get(6..12)?];
    let bytes = [low, high].concat();
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

fn finding(kernel: &Kernel<'_>, vector: usize, handler: u64) -> Finding {
    let name = kernel.describe_code(handler);
    let name = name.unwrap_or_else(|| format!("{handler:#x}"));
    Finding::new(
        Kind::InterruptTableChanged,
        format!("vector {vector}"),
        format!("its handler is {name} now"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handler_is_in_three_parts() {
        let mut gate = [0; GATE_SIZE];
        gate[..2].copy_from_slice(&[0x10, 0x32]);
        gate[6..12].copy_from_slice(&[0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe]);
        assert_eq!(handler(&gate), Some(0xfedc_ba98_7654_3210));
    }
}
