//! Counts of one core between two marks.

use std::collections::HashSet;
use std::ops::Range;

use insula_bench::marks::{Count, Kind, Machine};

/// Bytes of a cache line, on all x86-64 processors.
const LINE_BYTES: u64 = 64;

/// A translated block of code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    /// Whether it belongs to the kernel.
    pub(crate) is_of_kernel: bool,
    /// Number of its instructions.
    pub(crate) instructions: u64,
    /// Its addresses.
    pub(crate) addresses: Range<u64>,
}

/// A core, with its open window.
#[derive(Debug, Default)]
pub(crate) struct Core {
    is_in_kernel: bool,
    executed: u64,
    window: Option<Window>,
}

#[derive(Debug)]
struct Window {
    kind: Kind,
    machine_before: Machine,
    user_instructions: u64,
    kernel_instructions: u64,
    kernel_entries: u64,
    code_lines: HashSet<u64>,
    data_lines: HashSet<u64>,
}

impl Core {
    /// Returns the number of instructions that it has executed so far.
    pub(crate) fn executed(&self) -> u64 {
        self.executed
    }

    /// Opens a window with all counts at zero; `machine` are the machine's counts so far.
    pub(crate) fn begin(&mut self, kind: Kind, machine: Machine) {
        self.window = Some(Window {
            kind,
            machine_before: machine,
            user_instructions: 0,
            kernel_instructions: 0,
            kernel_entries: 0,
            code_lines: HashSet::new(),
            data_lines: HashSet::new(),
        });
    }

    /// Closes the window and returns its counts, if `kind` opened the last one.
    pub(crate) fn end(&mut self, kind: Kind, machine: Machine) -> Option<Count> {
        let window = self.window.take().filter(|window| window.kind == kind)?;
        Some(Count {
            kind,
            user_instructions: window.user_instructions,
            kernel_instructions: window.kernel_instructions,
            kernel_entries: window.kernel_entries,
            machine: machine.since(window.machine_before),
            code_lines: window.code_lines.len() as u64,
            data_lines: window.data_lines.len() as u64,
        })
    }

    /// Counts the execution of a block. With `lines` the kernel's cache lines of code are counted,
    /// too.
    pub(crate) fn execute(&mut self, block: &Block, lines: bool) {
        let enters = block.is_of_kernel && !self.is_in_kernel;
        self.is_in_kernel = block.is_of_kernel;
        self.executed += block.instructions;
        let Some(window) = &mut self.window else {
            return;
        };
        window.kernel_entries += u64::from(enters);
        if !block.is_of_kernel {
            window.user_instructions += block.instructions;
            return;
        }
        window.kernel_instructions += block.instructions;
        if lines && !block.addresses.is_empty() {
            let last = (block.addresses.end - 1) / LINE_BYTES;
            window
                .code_lines
                .extend(block.addresses.start / LINE_BYTES..=last);
        }
    }

    /// Counts a load or store of the kernel.
    pub(crate) fn access(&mut self, address: u64) {
        if let Some(window) = &mut self.window {
            window.data_lines.insert(address / LINE_BYTES);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: Block = Block {
        is_of_kernel: false,
        instructions: 5,
        addresses: 0x1000..0x1010,
    };
    const KERNEL: Block = Block {
        is_of_kernel: true,
        instructions: 7,
        addresses: 0xffff_8000_0000_003f..0xffff_8000_0000_0041,
    };

    fn machine(translated: u64) -> Machine {
        Machine {
            executed: 2 * translated,
            translated,
        }
    }

    #[test]
    fn a_window_counts_user_kernel_and_entries() {
        let mut core = Core::default();
        core.execute(&KERNEL, true);
        core.begin(Kind::SpinPlain, machine(100));
        for block in [USER, KERNEL, KERNEL, USER, KERNEL] {
            core.execute(&block, true);
        }
        for address in [0, 63, 64] {
            core.access(address);
        }
        let expected = Count {
            kind: Kind::SpinPlain,
            user_instructions: 10,
            kernel_instructions: 21,
            kernel_entries: 2,
            machine: machine(30),
            code_lines: 2,
            data_lines: 2,
        };
        assert_eq!(core.end(Kind::SpinPlain, machine(130)), Some(expected));
        assert_eq!(core.end(Kind::SpinPlain, machine(130)), None);
    }

    #[test]
    fn nothing_counts_without_a_matching_window() {
        let mut core = Core::default();
        core.execute(&USER, true);
        core.access(0);
        assert_eq!(core.end(Kind::SpinPlain, machine(0)), None);
        core.begin(Kind::SpinPlain, machine(0));
        assert_eq!(core.end(Kind::SpinLwk, machine(0)), None);
        core.begin(Kind::SpinLwk, machine(0));
        let count = core.end(Kind::SpinLwk, machine(0)).unwrap();
        assert_eq!((count.user_instructions, count.data_lines), (0, 0));
    }
}
