//! Files of a program that is being loaded.

use crate::model::elf::Program;
use crate::model::initial_stack::Arguments;

/// A prepared execve(2).
#[derive(Debug)]
pub(super) struct PendingExec {
    pub(super) buffer: u64,
    pub(super) arguments: Arguments,
    pub(super) image: Image,
}

/// An open file, and its parsed headers.
#[derive(Debug)]
pub(super) struct OpenFile {
    pub(super) file: u64,
    pub(super) program: Program,
}

/// A program to load: its file, and its interpreter's.
#[derive(Debug)]
pub(super) struct Image {
    pub(super) program: OpenFile,
    pub(super) interpreter: Option<OpenFile>,
}

impl Image {
    /// Returns the descriptor of the program's file.
    pub(super) fn file(&self) -> u64 {
        self.program.file
    }
}
