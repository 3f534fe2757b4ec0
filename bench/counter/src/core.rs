//! What one core has executed since it came to a mark.

use std::collections::HashSet;
use std::ops::Range;

use insula_bench::marks::{Count, Kind};

/// Bytes of a cache line, on all processors with x86-64.
const LINE_BYTES: u64 = 64;

/// A translated block of code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    /// Whether it is the kernel's.
    pub(crate) is_of_kernel: bool,
    /// Instructions that it consists of.
    pub(crate) instructions: u64,
    /// Where they are.
    pub(crate) addresses: Range<u64>,
}

/// A core, and the window that is open on it.
#[derive(Debug, Default)]
pub(crate) struct Core {
    is_in_kernel: bool,
    window: Option<Window>,
}

#[derive(Debug)]
struct Window {
    kind: Kind,
    user_instructions: u64,
    kernel_instructions: u64,
    kernel_entries: u64,
    code_lines: HashSet<u64>,
    data_lines: HashSet<u64>,
}

impl Core {
    /// Counts from now on, from nothing.
    pub(crate) fn begin(&mut self, kind: Kind) {
        self.window = Some(Window {
            kind,
            user_instructions: 0,
            kernel_instructions: 0,
            kernel_entries: 0,
            code_lines: HashSet::new(),
            data_lines: HashSet::new(),
        });
    }

    /// What has been counted, if it is that which was begun last.
    pub(crate) fn end(&mut self, kind: Kind) -> Option<Count> {
        let window = self.window.take().filter(|window| window.kind == kind)?;
        Some(Count {
            kind,
            user_instructions: window.user_instructions,
            kernel_instructions: window.kernel_instructions,
            kernel_entries: window.kernel_entries,
            code_lines: window.code_lines.len() as u64,
            data_lines: window.data_lines.len() as u64,
        })
    }

    /// It executes a block. With `lines` the lines of the kernel's code count.
    pub(crate) fn execute(&mut self, block: &Block, lines: bool) {
        let enters = block.is_of_kernel && !self.is_in_kernel;
        self.is_in_kernel = block.is_of_kernel;
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

    /// The kernel's code loads or stores.
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

    #[test]
    fn a_window_counts_both_sides_and_the_way_between() {
        let mut core = Core::default();
        core.execute(&KERNEL, true);
        core.begin(Kind::SpinPlain);
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
            code_lines: 2,
            data_lines: 2,
        };
        assert_eq!(core.end(Kind::SpinPlain), Some(expected));
        assert_eq!(core.end(Kind::SpinPlain), None);
    }

    #[test]
    fn nothing_counts_outside_of_a_window_nor_in_another_ones() {
        let mut core = Core::default();
        core.execute(&USER, true);
        core.access(0);
        assert_eq!(core.end(Kind::SpinPlain), None);
        core.begin(Kind::SpinPlain);
        assert_eq!(core.end(Kind::SpinQuiet), None);
        core.begin(Kind::SpinQuiet);
        let count = core.end(Kind::SpinQuiet).unwrap();
        assert_eq!((count.user_instructions, count.data_lines), (0, 0));
    }
}
