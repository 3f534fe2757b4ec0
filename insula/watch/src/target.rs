//! The kernel watched.

use crate::module_files::ModuleFiles;
use kimage::PhysicalMemory;
use kimage::reference::Reference;
use kimage::running::{Object, RunningError, RunningKernel};
use std::time::Duration;

/// A kernel in any kind of memory.
pub type Kernel<'a> = RunningKernel<'a, dyn PhysicalMemory + 'a>;
/// An object of it.
pub(crate) type Place<'k, 'a> = Object<'k, 'a, dyn PhysicalMemory + 'a>;

/// The kernel watched, at one moment.
#[derive(Debug, Clone, Copy)]
pub struct Target<'a> {
    /// Its memory and tables.
    pub kernel: &'a Kernel<'a>,
    /// Its image; without it code and constants are not compared.
    pub reference: Option<&'a Reference>,
    /// Files of its modules; without them, or without its image, the code of modules is not compared.
    pub modules: Option<&'a ModuleFiles>,
}

/// How long something has been as it is.
#[derive(Debug, Clone)]
pub(crate) struct Since<T> {
    value: T,
    begin: Duration,
}

impl<T: PartialEq> Since<T> {
    pub(crate) fn new(value: T, now: Duration) -> Self {
        Self { value, begin: now }
    }

    /// Takes a new value; returns how long it has been the same.
    pub(crate) fn update(&mut self, value: T, now: Duration) -> Duration {
        if self.value != value {
            *self = Self::new(value, now);
        }
        now.saturating_sub(self.begin)
    }
}

/// An element of a global array of 64-bit counters, by its name in an enumeration.
pub(crate) fn counter(
    kernel: &Kernel<'_>,
    array: &'static str,
    enumeration: &str,
    name: &str,
) -> Result<u64, RunningError> {
    let index = kernel.btf()?.enumerator(enumeration, name)?;
    kernel.word(kernel.symbol(array)?.wrapping_add(8 * u64::from(index)))
}
