//! Why a kernel in memory cannot be inspected.

use crate::btf::LookupError;
use crate::memory::ReadError;
use crate::running::ListError;
use crate::symbols::SymbolError;
use thiserror::Error;

/// Why something of a kernel in memory is unknown.
#[derive(Debug, Error)]
pub enum RunningError {
    /// Its memory cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The address is not mapped.
    #[error(transparent)]
    Virtual(#[from] VirtualReadError),
    /// Its symbols are missing.
    #[error("{0} (in memory)")]
    Symbols(#[from] SymbolError),
    /// It has no such symbol.
    #[error("the kernel has no symbol {0}; use one built with CONFIG_KALLSYMS_ALL")]
    NoSymbol(&'static str),
    /// It has no type information.
    #[error("the kernel has no type information; use one built with CONFIG_DEBUG_INFO_BTF")]
    NoTypes,
    /// A type is not as expected.
    #[error(transparent)]
    Type(#[from] LookupError),
    /// An address is not in the image, as it should be.
    #[error("the address {0:#x} is not in the kernel's image")]
    OutsideImage(u64),
    /// A member is of another kind than expected.
    #[error("a member of the kernel's structures is no {0}")]
    NotOfKind(&'static str),
    /// A list is damaged, or changed while it was followed.
    #[error(transparent)]
    List(#[from] ListError),
}

/// An unmapped virtual address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the kernel maps no memory at the virtual address {0:#x}")]
pub struct VirtualReadError(pub u64);
