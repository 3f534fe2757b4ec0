//! Counts of one core between two marks, or of its paths from a program into a kernel.

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
    /// Whether to this project's part of it.
    pub(crate) is_ours: bool,
    /// Number of its instructions.
    pub(crate) instructions: u64,
    /// Its addresses.
    pub(crate) addresses: Range<u64>,
}

/// What is counted of each executed block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Scope {
    /// Whether the kernel's cache lines are.
    pub(crate) lines: bool,
    /// Address of the block at which a path ends.
    pub(crate) path_end: u64,
}

/// A core, with its open window.
#[derive(Debug, Default)]
pub(crate) struct Core {
    is_in_kernel: bool,
    executed: u64,
    window: Option<Window>,
    /// Its paths are counted, one by one.
    paths: Option<Kind>,
}

#[derive(Debug)]
struct Window {
    kind: Kind,
    machine_before: Machine,
    user_instructions: u64,
    kernel_instructions: u64,
    our_instructions: u64,
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
            our_instructions: 0,
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
            our_instructions: window.our_instructions,
            kernel_entries: window.kernel_entries,
            machine: machine.since(window.machine_before),
            code_lines: window.code_lines.len() as u64,
            data_lines: window.data_lines.len() as u64,
        })
    }

    /// Counts its paths from now on, or no more.
    pub(crate) fn count_paths(&mut self, kind: Option<Kind>) {
        self.paths = kind;
        self.window = None;
    }

    /// Counts the execution of a block that comes next. Returns the counts of a path that ends at it.
    pub(crate) fn execute(&mut self, block: &Block, scope: Scope) -> Option<Count> {
        let enters = block.is_of_kernel && !self.is_in_kernel;
        self.is_in_kernel = block.is_of_kernel;
        self.executed += block.instructions;
        let ended = match self.paths {
            Some(kind) if enters => {
                self.begin(kind, Machine::default());
                None
            }
            // What brought the core into a kernel was something else.
            Some(_) if !block.is_of_kernel => {
                self.window = None;
                None
            }
            Some(kind) if block.addresses.start == scope.path_end => {
                self.end(kind, Machine::default())
            }
            _ => None,
        };
        self.count(block, enters, scope.lines);
        ended
    }

    fn count(&mut self, block: &Block, enters: bool, lines: bool) {
        let Some(window) = &mut self.window else {
            return;
        };
        window.kernel_entries += u64::from(enters);
        if !block.is_of_kernel {
            window.user_instructions += block.instructions;
            return;
        }
        window.kernel_instructions += block.instructions;
        window.our_instructions += if block.is_ours { block.instructions } else { 0 };
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
        is_ours: false,
        instructions: 5,
        addresses: 0x1000..0x1010,
    };
    const KERNEL: Block = Block {
        is_of_kernel: true,
        is_ours: false,
        instructions: 7,
        addresses: 0xffff_8000_0000_003f..0xffff_8000_0000_0041,
    };

    const END: Block = Block {
        is_ours: true,
        addresses: 0xffff_8000_0000_1000..0xffff_8000_0000_1010,
        ..KERNEL
    };
    const SCOPE: Scope = Scope {
        lines: true,
        path_end: END.addresses.start,
    };

    fn machine(translated: u64) -> Machine {
        Machine {
            executed: 2 * translated,
            translated,
            ..Machine::default()
        }
    }

    #[test]
    fn a_window_counts_user_kernel_and_entries() {
        let mut core = Core::default();
        core.execute(&KERNEL, SCOPE);
        core.begin(Kind::SpinPlain, machine(100));
        for block in [USER, KERNEL, KERNEL, USER, KERNEL] {
            core.execute(&block, SCOPE);
        }
        for address in [0, 63, 64] {
            core.access(address);
        }
        let expected = Count {
            kind: Kind::SpinPlain,
            user_instructions: 10,
            kernel_instructions: 21,
            our_instructions: 0,
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
        core.execute(&USER, SCOPE);
        core.access(0);
        assert_eq!(core.end(Kind::SpinPlain, machine(0)), None);
        core.begin(Kind::SpinPlain, machine(0));
        assert_eq!(core.end(Kind::SpinLwk, machine(0)), None);
        core.begin(Kind::SpinLwk, machine(0));
        let count = core.end(Kind::SpinLwk, machine(0)).unwrap();
        assert_eq!((count.user_instructions, count.data_lines), (0, 0));
    }
    #[test]
    fn a_path_goes_from_a_program_to_its_end() {
        let mut core = Core::default();
        core.count_paths(Some(Kind::InterruptShared));
        let execute = |core: &mut Core, blocks: &[Block]| -> Vec<_> {
            let ended = blocks.iter().map(|block| core.execute(block, SCOPE));
            ended.flatten().collect()
        };
        // The end was not reached, or not from a program.
        assert_eq!(execute(&mut core, &[END, USER, KERNEL, USER]), []);
        let ours = Block {
            is_ours: true,
            ..KERNEL
        };
        let counts = execute(&mut core, &[KERNEL, ours, END, KERNEL, END, USER]);
        let [count] = counts[..] else {
            panic!("{counts:?}");
        };
        assert_eq!(count.kind, Kind::InterruptShared);
        let instructions = (count.kernel_instructions, count.our_instructions);
        assert_eq!((instructions, count.code_lines), ((14, 7), 2));
        core.count_paths(None);
        assert_eq!(execute(&mut core, &[USER, KERNEL, END]), []);
    }
}
