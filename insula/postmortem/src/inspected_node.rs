//! A node under inspection: its memory, and the kernel in it.

use insula_base::error::Error;
use insula_driver::name;
use insula_driver::{DriverError, Mapping};
use insula_node::monitor_state::{PausedCore, paused_cores};
use insula_node::{Handle, log_layout};
use kimage::log::{LogLayout, Placement, locate};
use kimage::running::{Processor, Registers, RunningKernel};

/// A node's memory, and its kernel's place in it.
#[derive(Debug)]
pub struct InspectedNode {
    name: String,
    memory: Mapping,
    /// Layout and placement of the kernel; or why they are unknown.
    kernel: Result<(LogLayout, Placement), String>,
    /// The cores, if it is paused.
    paused: Vec<PausedCore>,
    /// Whether the registers saved by the cores' last NMI are of a known moment: see
    /// [`InspectedNode::processors`].
    registers_known: bool,
    running: bool,
}

impl InspectedNode {
    /// Maps a node's memory and looks for its kernel.
    ///
    /// # Errors
    /// When its memory cannot be read. A missing kernel is reported by [`kernel`](Self::kernel).
    pub fn open(handle: &Handle) -> Result<Self, Error> {
        let name = name::text(&handle.info.name);
        let memory = handle.node.memory().map_err(DriverError::from);
        let memory = memory
            .and_then(|memory| memory.map_for_reading())
            .map_err(|source| {
                Error::new(format!("the memory of the node '{name}' cannot be read"))
                    .because(source)
                    .unchanged()
            })?;
        let kernel = log_layout(handle)
            .map_err(|error| first_line(&error.to_string()))
            .and_then(|layout| {
                let placement = locate(&layout, &memory);
                let placement = placement.ok_or("it has not logged anything yet")?;
                Ok((layout, placement))
            });
        let paused = match handle.is_paused() {
            // Without them it is like one that runs.
            true => paused_cores(handle).unwrap_or_default(),
            false => Vec::new(),
        };
        Ok(Self {
            name,
            memory,
            kernel,
            registers_known: handle.is_crashed() || handle.is_hung(),
            running: handle.is_running() && paused.is_empty(),
            paused,
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

    /// Whether it was running when it was opened, so that its memory changes. A paused one is not.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.running
    }

    /// The kernel in its memory.
    ///
    /// # Errors
    /// When it does not run yet, or is of an unknown kind.
    pub fn kernel(&self) -> Result<RunningKernel<'_, Mapping>, Error> {
        let reason = self.kernel.as_ref();
        let (layout, placement) = reason.map_err(|reason| self.uninspectable(reason))?;
        RunningKernel::attach(layout, *placement, &self.memory)
            .map_err(|error| self.uninspectable(&error.to_string()))
    }

    /// The error for a kernel that was not found, or is of an unknown kind.
    fn uninspectable(&self, reason: &str) -> Error {
        let what = format!(
            "the kernel of the node '{}' cannot be inspected: {reason}",
            self.name
        );
        Error::new(what).unchanged().hint(
            "use a kernel built with KALLSYMS_ALL and DEBUG_INFO_BTF, like those of distributions",
        )
    }

    /// Records that each core has just been interrupted.
    pub(super) fn set_registers_known(&mut self) {
        self.registers_known = true;
    }

    /// The processors that the kernel has used, each with its registers if they are of a known
    /// moment: of a paused node the present ones, of one that crashed or hung those at that time, of
    /// one whose cores were just interrupted those of the interrupt. Others are left out.
    #[must_use]
    pub fn processors(
        &self,
        kernel: &RunningKernel<'_, Mapping>,
    ) -> Vec<(Processor, Option<Registers>)> {
        let processors = kernel.processors().unwrap_or_default();
        let paused = |processor: &Processor| {
            let mut cores = self.paused.iter();
            cores.find(|core| core.apic_id == processor.apic_id)
        };
        let registers = |processor: &Processor| {
            if let Some(core) = paused(processor) {
                return Some(Registers::from_words(core.registers));
            }
            let known = kernel.registers_at_nmi(processor).ok().flatten();
            known.filter(|_| self.registers_known)
        };
        processors
            .into_iter()
            .map(|processor| (processor, registers(&processor)))
            .collect()
    }
}

/// A message without its hint.
fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}
