//! Code that the kernel makes while it runs, for tracers and BPF programs.

use crate::target::Kernel;
use kimage::reference::Transfer;
use kimage::running::RunningError;
use std::ops::Range;

/// Code of ftrace in the image that calls of traced functions lead to: `ftrace_caller`,
/// `ftrace_regs_caller`, `ftrace_graph_caller`, and functions of tracers.
const TRACERS: [&str; 4] = ["ftrace_", "arch_ftrace_", "function_", "trace_"];

/// Where such code is, by the kernel's own lists.
#[derive(Debug)]
pub(super) struct Trampolines(Vec<Range<u64>>);

impl Trampolines {
    /// Reads the trampolines of ftrace, and the programs and trampolines of BPF.
    pub(super) fn of(kernel: &Kernel<'_>) -> Result<Self, RunningError> {
        let mut ranges = Vec::new();
        if let Ok(list) = kernel.global("ftrace_ops_trampoline_list", "list_head") {
            for tracer in list.list("ftrace_ops", "list")? {
                let start = tracer.number("trampoline")?;
                ranges.push(start..start.saturating_add(tracer.number("trampoline_size")?));
            }
        }
        if let Ok(list) = kernel.global("bpf_kallsyms", "list_head") {
            for program in list.list("bpf_ksym", "lnode")? {
                ranges.push(program.number("start")?..program.number("end")?);
            }
        }
        Ok(Self(ranges))
    }

    /// Whether such code is there.
    pub(super) fn contain(&self, address: u64) -> bool {
        self.0.iter().any(|range| range.contains(&address))
    }

    /// Whether a call leads to where such a call can.
    pub(super) fn permit(&self, kernel: &Kernel<'_>, call: &Transfer) -> bool {
        if self.contain(call.target) {
            return true;
        }
        let Some(name) = kernel.describe_code(call.target) else {
            return false;
        };
        // The tracer of a module is called by a trampoline of ftrace.
        let is_tracer = TRACERS.iter().any(|one| name.starts_with(one));
        !call.is_traced || is_tracer && !name.ends_with(']')
    }
}
