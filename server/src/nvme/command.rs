//! Commands and their completions, as they are in queues (4.2, 4.6).

use super::Error;

/// Bytes of a command.
pub(super) const COMMAND_SIZE: usize = 64;
/// Bytes of a completion.
pub(super) const COMPLETION_SIZE: usize = 16;

/// Commands of administration (5), and of I/O (6).
mod opcode {
    pub(super) const CREATE_SUBMISSION: u8 = 0x01;
    pub(super) const CREATE_COMPLETION: u8 = 0x05;
    pub(super) const IDENTIFY: u8 = 0x06;
    pub(super) const SET_FEATURES: u8 = 0x09;
    pub(super) const FLUSH: u8 = 0x00;
    pub(super) const WRITE: u8 = 0x01;
    pub(super) const READ: u8 = 0x02;
    pub(super) const WRITE_ZEROES: u8 = 0x08;
}

/// A command, but for its number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Command {
    opcode: u8,
    namespace: u32,
    data: [u64; 2],
    words: [u32; 3],
}

impl Command {
    fn new(opcode: u8, namespace: u32, words: [u32; 3]) -> Self {
        Self {
            opcode,
            namespace,
            data: [0; 2],
            words,
        }
    }

    /// Has it read or write pages: the first, and the second or a list of the others.
    pub(super) fn with_data(self, first: u64, second: u64) -> Self {
        Self {
            data: [first, second],
            ..self
        }
    }

    /// Asks for a structure of 4096 bytes (5.15).
    pub(super) fn identify(structure: u32, namespace: u32) -> Self {
        Self::new(opcode::IDENTIFY, namespace, [structure, 0, 0])
    }

    /// Asks for one queue pair for I/O (5.21.1.7).
    pub(super) fn one_queue_pair() -> Self {
        const NUMBER_OF_QUEUES: u32 = 7;
        Self::new(opcode::SET_FEATURES, 0, [NUMBER_OF_QUEUES, 0, 0])
    }

    /// Creates a completion queue, which interrupts by the first message or not at all (5.3).
    pub(super) fn create_completion_queue(queue: u16, entries: u16, interrupts: bool) -> Self {
        const CONTIGUOUS: u32 = 1;
        const INTERRUPTS: u32 = 2;
        let size = u32::from(entries - 1) << 16 | u32::from(queue);
        let flags = CONTIGUOUS | if interrupts { INTERRUPTS } else { 0 };
        Self::new(opcode::CREATE_COMPLETION, 0, [size, flags, 0])
    }

    /// Creates a submission queue, whose completions are in the queue of the same number (5.4).
    pub(super) fn create_submission_queue(queue: u16, entries: u16) -> Self {
        const CONTIGUOUS: u32 = 1;
        let size = u32::from(entries - 1) << 16 | u32::from(queue);
        let flags = u32::from(queue) << 16 | CONTIGUOUS;
        Self::new(opcode::CREATE_SUBMISSION, 0, [size, flags, 0])
    }

    fn on_blocks(opcode: u8, namespace: u32, block: u64, count: u32) -> Self {
        let words = [block as u32, (block >> 32) as u32, (count - 1) & 0xffff];
        Self::new(opcode, namespace, words)
    }

    /// Reads blocks, at most 65,536.
    pub(super) fn read(namespace: u32, block: u64, count: u32) -> Self {
        Self::on_blocks(opcode::READ, namespace, block, count)
    }

    /// Writes blocks, at most 65,536.
    pub(super) fn write(namespace: u32, block: u64, count: u32) -> Self {
        Self::on_blocks(opcode::WRITE, namespace, block, count)
    }

    /// Zeroes blocks, at most 65,536.
    pub(super) fn write_zeroes(namespace: u32, block: u64, count: u32) -> Self {
        Self::on_blocks(opcode::WRITE_ZEROES, namespace, block, count)
    }

    /// Has what was written survive.
    pub(super) fn flush(namespace: u32) -> Self {
        Self::new(opcode::FLUSH, namespace, [0; 3])
    }

    /// Returns the bytes of a submission queue's entry.
    pub(super) fn to_bytes(self, number: u16) -> [u8; COMMAND_SIZE] {
        let mut bytes = [0; COMMAND_SIZE];
        let mut put = |at: usize, part: &[u8]| bytes[at..at + part.len()].copy_from_slice(part);
        put(0, &[self.opcode]);
        put(2, &number.to_le_bytes());
        put(4, &self.namespace.to_le_bytes());
        for (index, address) in self.data.iter().enumerate() {
            put(24 + 8 * index, &address.to_le_bytes());
        }
        for (index, word) in self.words.iter().enumerate() {
            put(40 + 4 * index, &word.to_le_bytes());
        }
        bytes
    }
}

/// The words of a completion that matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Completion {
    /// Depends on the command.
    pub(super) result: u32,
    /// Number of the command.
    pub(super) number: u16,
    /// Type and code of the status; 0 and 0 for success.
    pub(super) status: (u8, u8),
}

impl Completion {
    /// Why the command has failed, if it has.
    pub(super) fn error(&self) -> Option<Error> {
        let (kind, code) = self.status;
        (self.status != (0, 0)).then_some(Error::Status { kind, code })
    }

    /// Reads the last word. Returns it with the phase, which says whether it is a new one.
    pub(super) fn of(result: u32, last: u32) -> (Self, bool) {
        let completion = Self {
            result,
            number: last as u16,
            status: ((last >> 25) as u8 & 7, (last >> 17) as u8),
        };
        (completion, last >> 16 & 1 != 0)
    }
}
