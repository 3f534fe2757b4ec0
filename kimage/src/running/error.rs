//! Why a kernel in memory cannot be understood.

use crate::btf::LookupError;
use crate::memory::ReadError;
use crate::symbols::SymbolError;
use thiserror::Error;

/// Why something of a kernel in memory cannot be known.
#[derive(Debug, Error)]
pub enum RunningError {
    /// Memory that it should lie in cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// It is not mapped.
    #[error(transparent)]
    Virtual(#[from] VirtualReadError),
    /// Its symbols are not there.
    #[error("{0} (as it lies in memory)")]
    Symbols(#[from] SymbolError),
    /// It has no such symbol.
    #[error("the kernel has no symbol {0}; use one that was built with CONFIG_KALLSYMS_ALL")]
    NoSymbol(&'static str),
    /// It carries no types.
    #[error(
        "the kernel carries no type information; use one that was built with CONFIG_DEBUG_INFO_BTF"
    )]
    NoTypes,
    /// Its types are others than those known.
    #[error(transparent)]
    Type(#[from] LookupError),
    /// An address that should lie in the image does not.
    #[error("the address {0:#x} does not lie in the kernel's image")]
    OutsideImage(u64),
}

/// A virtual address that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the kernel maps nothing of its memory at the virtual address {0:#x}")]
pub struct VirtualReadError(pub u64);
