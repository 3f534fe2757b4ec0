//! A node to be looked into: its memory, and the kernel in it.

use kimage::log::{LogLayout, Placement, locate};
use kimage::running::{Processor, Registers, RunningKernel};

use crate::driver::{DriverError, Mapping};
use crate::name;
use crate::node::{Handle, log_layout};

/// Why a node cannot be looked into. It was left as it is.
#[derive(Debug, thiserror::Error)]
pub enum SubjectError {
    /// The memory cannot be reached.
    #[error("the memory of the node '{name}' cannot be read: {source}; it was left as it is")]
    Driver {
        /// The node.
        name: String,
        /// Why.
        source: DriverError,
    },
    /// The kernel in it is not known.
    #[error(
        "the kernel of the node '{name}' cannot be understood: {reason}; it was left as it is\n\
         use a kernel built with KALLSYMS_ALL and DEBUG_INFO_BTF, as distributions' are"
    )]
    Kernel {
        /// The node.
        name: String,
        /// Why.
        reason: String,
    },
}

/// A node's memory, and where in it its kernel lies.
#[derive(Debug)]
pub struct Subject {
    name: String,
    memory: Mapping,
    /// The kernel's place; or why it is not known.
    kernel: Result<(LogLayout, Placement), String>,
    /// Whether the cores' last registers are in memory: see [`Subject::registers`].
    frozen: bool,
    running: bool,
}

impl Subject {
    /// Maps a node's memory and looks for its kernel.
    ///
    /// # Errors
    /// [`SubjectError::Driver`]. That the kernel is not found is told when it is asked for.
    pub fn open(handle: &Handle) -> Result<Self, SubjectError> {
        let name = name::text(&handle.info.name);
        let failed = |source| SubjectError::Driver {
            name: name.clone(),
            source,
        };
        let memory = handle
            .node
            .memory()
            .map_err(|error| failed(error.into()))?
            .map()
            .map_err(|error| failed(error.into()))?;
        let kernel = log_layout(handle)
            .map_err(|error| first_line(&error.to_string()))
            .and_then(|layout| {
                let placement = locate(&layout, &memory);
                let placement = placement.ok_or("it has not logged anything yet")?;
                Ok((layout, placement))
            });
        Ok(Self {
            name,
            memory,
            kernel,
            frozen: handle.is_crashed() || handle.is_hung(),
            running: handle.is_running(),
        })
    }

    /// The node's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its memory.
    #[must_use]
    pub fn memory(&self) -> &Mapping {
        &self.memory
    }

    /// Its memory, to be written.
    pub(super) fn memory_mut(&mut self) -> &mut Mapping {
        &mut self.memory
    }

    /// Whether its cores executed it when it was opened.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.running
    }

    /// The kernel in it.
    ///
    /// # Errors
    /// [`SubjectError::Kernel`] when it does not run yet, or is of a kind that is not known.
    pub fn kernel(&self) -> Result<RunningKernel<'_, Mapping>, SubjectError> {
        let failed = |reason: &str| SubjectError::Kernel {
            name: self.name.clone(),
            reason: reason.to_owned(),
        };
        let (layout, placement) = self.kernel.as_ref().map_err(|reason| failed(reason))?;
        RunningKernel::attach(layout, *placement, &self.memory)
            .map_err(|error| failed(&first_line(&error.to_string())))
    }

    /// Says that each core has just been interrupted.
    pub(super) fn set_frozen(&mut self) {
        self.frozen = true;
    }

    /// The processors that the kernel has used, each with its registers if they can be had: of a
    /// node that crashed or hung those at its end, of one whose cores were just interrupted those of
    /// that moment. Of any other they would be of an unknown moment, and are left out.
    #[must_use]
    pub fn processors(
        &self,
        kernel: &RunningKernel<'_, Mapping>,
    ) -> Vec<(Processor, Option<Registers>)> {
        let processors = kernel.processors().unwrap_or_default();
        let registers = |processor: &Processor| {
            let known = kernel.registers_at_nmi(processor).ok().flatten();
            known.filter(|_| self.frozen)
        };
        processors
            .into_iter()
            .map(|processor| (processor, registers(&processor)))
            .collect()
    }
}

/// What a message says before its advice.
fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}
