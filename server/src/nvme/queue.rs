//! A queue pair: commands go into one circle, completions come out of another.

use super::command::{COMMAND_SIZE, COMPLETION_SIZE, Command, Completion};
use crate::pci::DeviceMemory;

/// A queue pair.
#[derive(Debug)]
pub(super) struct Queue<M> {
    number: u16,
    entries: u16,
    submissions: M,
    completions: M,
    /// Where the next command goes, and the next completion comes.
    tail: u16,
    head: u16,
    /// Phase of the next completion: it changes each time round.
    phase: bool,
    next_command: u16,
}

impl<M: DeviceMemory> Queue<M> {
    /// Makes a queue in zeroed memory.
    pub(super) fn new(number: u16, entries: u16, submissions: M, completions: M) -> Self {
        Self {
            number,
            entries,
            submissions,
            completions,
            tail: 0,
            head: 0,
            phase: true,
            next_command: 0,
        }
    }

    /// Returns its number.
    pub(super) fn number(&self) -> u16 {
        self.number
    }

    /// Returns where the device finds its parts: commands, and completions.
    pub(super) fn device_addresses(&self) -> (u64, u64) {
        let parts = (&self.submissions, &self.completions);
        (parts.0.device_address(), parts.1.device_address())
    }

    /// Returns how many commands can be under way.
    pub(super) fn depth(&self) -> usize {
        usize::from(self.entries - 1)
    }

    /// Adds a command, of [`Queue::depth`] at most. Returns its number, and what the doorbell of commands is to be told.
    pub(super) fn submit(&mut self, command: Command) -> (u16, u16) {
        let number = self.next_command;
        self.next_command = number.wrapping_add(1);
        let at = usize::from(self.tail) * COMMAND_SIZE;
        self.submissions.write(at, &command.to_bytes(number));
        self.tail = (self.tail + 1) % self.entries;
        (number, self.tail)
    }

    /// Takes the next completion, if it has come. Returns it, and what the doorbell of completions is to
    /// be told.
    pub(super) fn take(&mut self) -> Option<(Completion, u16)> {
        let at = usize::from(self.head) * COMPLETION_SIZE;
        // The device writes the last word last.
        let last = self.completions.word(at + 12);
        let (_, phase) = Completion::of(0, last);
        if phase != self.phase {
            return None;
        }
        let (completion, _) = Completion::of(self.completions.word(at), last);
        self.head = (self.head + 1) % self.entries;
        self.phase ^= self.head == 0;
        Some((completion, self.head))
    }
}
