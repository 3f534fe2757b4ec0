//! The gdb target: a node.

use std::convert::Infallible;

use gdbstub::common::{Signal, Tid};
use gdbstub::stub::MultiThreadStopReason;
use gdbstub::target::ext::base::BaseOps;
use gdbstub::target::ext::base::multithread::MultiThreadBase;
use gdbstub::target::ext::monitor_cmd::{ConsoleOutput, MonitorCmd, MonitorCmdOps, outputln};
use gdbstub::target::ext::section_offsets::{Offsets, SectionOffsets, SectionOffsetsOps};
use gdbstub::target::ext::thread_extra_info::{ThreadExtraInfo, ThreadExtraInfoOps};
use gdbstub::target::{Target, TargetError, TargetResult};
use gdbstub_arch::x86::X86_64_SSE;
use gdbstub_arch::x86::reg::X86_64CoreRegs;
use insula_base::error::Error;
use insula_driver::Mapping;
use kimage::running::{PageTable, Processor, Registers, RunningKernel};

use super::UNCHANGED;
use crate::InspectedNode;

pub(super) type StopReason = MultiThreadStopReason<u64>;

/// Stop reason reported for a node, which never runs under gdb.
pub(super) const STOPPED: StopReason = MultiThreadStopReason::Signal(Signal::SIGTRAP);

/// Output of `monitor help`.
const HELP: &str = "\
monitor symbol NAME   run-time address of a kernel symbol
monitor kernel        placement of the kernel
monitor cores         cores, and whether their registers are known";

/// A node whose kernel was found.
#[derive(Debug)]
pub struct NodeTarget<'a> {
    kernel: RunningKernel<'a, Mapping>,
    page_table: PageTable<'a, Mapping>,
    cores: Vec<(Processor, Option<Registers>)>,
}

impl<'a> NodeTarget<'a> {
    /// Prepares a node for gdb.
    ///
    /// # Errors
    /// When its kernel cannot be inspected.
    pub fn new(node: &'a InspectedNode) -> Result<Self, Error> {
        let kernel = node.kernel()?;
        let page_table = kernel.page_table().map_err(|source| {
            Error::new("the kernel of the node cannot be inspected")
                .because(source)
                .leaving(UNCHANGED)
        })?;
        let cores = node.processors(&kernel);
        Ok(Self {
            kernel,
            page_table,
            cores,
        })
    }

    /// Its cores, by its kernel's numbers, and whether their registers are known.
    pub fn cores(&self) -> impl Iterator<Item = (u32, bool)> + '_ {
        let known = |(processor, registers): &(Processor, Option<Registers>)| {
            (processor.number, registers.is_some())
        };
        self.cores.iter().map(known)
    }

    fn core(&self, thread: Tid) -> Option<&(Processor, Option<Registers>)> {
        let number = thread.get() - 1;
        self.cores
            .iter()
            .find(|(processor, _)| processor.number as usize == number)
    }

    fn answer(&self, command: &str) -> Vec<String> {
        let words: Vec<_> = command.split_whitespace().collect();
        match words.as_slice() {
            ["symbol", name] => match self.kernel.symbols().address(name) {
                Some(address) => vec![format!("{address:#x}")],
                None => vec![format!("the kernel has no symbol {name}")],
            },
            ["kernel"] => {
                let (image, placement) = (self.kernel.image(), self.kernel.placement());
                vec![
                    format!("image     {:#x}-{:#x}", image.start, image.end),
                    format!("physical  {:#x}", placement.physical),
                    format!("offset    {:#x}", placement.virtual_offset),
                ]
            }
            ["cores"] => self
                .cores()
                .map(|(number, known)| format!("{number}  {}", extra_info(known)))
                .collect(),
            _ => HELP.lines().map(str::to_owned).collect(),
        }
    }
}

impl Target for NodeTarget<'_> {
    type Arch = X86_64_SSE;
    type Error = Infallible;

    fn base_ops(&mut self) -> BaseOps<'_, Self::Arch, Self::Error> {
        BaseOps::MultiThread(self)
    }

    /// There are no breakpoints: the target never runs.
    fn guard_rail_implicit_sw_breakpoints(&self) -> bool {
        true
    }

    fn support_section_offsets(&mut self) -> Option<SectionOffsetsOps<'_, Self>> {
        Some(self)
    }

    fn support_monitor_cmd(&mut self) -> Option<MonitorCmdOps<'_, Self>> {
        Some(self)
    }
}

impl MultiThreadBase for NodeTarget<'_> {
    fn read_registers(&mut self, into: &mut X86_64CoreRegs, thread: Tid) -> TargetResult<(), Self> {
        let (_, registers) = self.core(thread).ok_or(TargetError::NonFatal)?;
        *into = registers.as_ref().map(to_gdb).unwrap_or_default();
        Ok(())
    }

    fn write_registers(&mut self, _: &X86_64CoreRegs, _: Tid) -> TargetResult<(), Self> {
        Err(TargetError::NonFatal)
    }

    fn read_addrs(&mut self, start: u64, into: &mut [u8], _: Tid) -> TargetResult<usize, Self> {
        match self.page_table.read(start, into) {
            Ok(()) => Ok(into.len()),
            // Everything before the first unmapped address was read.
            Err(failed) => match failed.0.wrapping_sub(start) as usize {
                0 => Err(TargetError::NonFatal),
                size => Ok(size.min(into.len())),
            },
        }
    }

    fn write_addrs(&mut self, _: u64, _: &[u8], _: Tid) -> TargetResult<(), Self> {
        Err(TargetError::NonFatal)
    }

    fn list_active_threads(&mut self, report: &mut dyn FnMut(Tid)) -> Result<(), Infallible> {
        let threads = self.cores.iter();
        threads
            .filter_map(|(processor, _)| thread(processor))
            .for_each(report);
        Ok(())
    }

    fn support_thread_extra_info(&mut self) -> Option<ThreadExtraInfoOps<'_, Self>> {
        Some(self)
    }
}

impl ThreadExtraInfo for NodeTarget<'_> {
    fn thread_extra_info(&self, thread: Tid, into: &mut [u8]) -> Result<usize, Infallible> {
        let known = self
            .core(thread)
            .is_some_and(|(_, registers)| registers.is_some());
        let text = format!("core {}, {}", thread.get() - 1, extra_info(known));
        let size = text.len().min(into.len());
        into[..size].copy_from_slice(&text.as_bytes()[..size]);
        Ok(size)
    }
}

impl SectionOffsets for NodeTarget<'_> {
    /// Run-time start of the image: gdb relocates the symbols of a `vmlinux` there.
    fn get_section_offsets(&mut self) -> Result<Offsets<u64>, Infallible> {
        Ok(Offsets::Segments {
            text_seg: self.kernel.image().start,
            data_seg: None,
        })
    }
}

impl MonitorCmd for NodeTarget<'_> {
    fn handle_monitor_cmd(
        &mut self,
        command: &[u8],
        mut out: ConsoleOutput<'_>,
    ) -> Result<(), Infallible> {
        for line in self.answer(&String::from_utf8_lossy(command)) {
            outputln!(out, "{line}");
        }
        Ok(())
    }
}

/// gdb numbers threads from 1.
fn thread(processor: &Processor) -> Option<Tid> {
    Tid::new(processor.number as usize + 1)
}

fn extra_info(known: bool) -> &'static str {
    if known {
        "registers known"
    } else {
        "registers unknown, shown as 0"
    }
}

fn to_gdb(registers: &Registers) -> X86_64CoreRegs {
    let r = registers;
    let mut gdb = X86_64CoreRegs {
        regs: [
            r.rax, r.rbx, r.rcx, r.rdx, r.rsi, r.rdi, r.rbp, r.rsp, r.r8, r.r9, r.r10, r.r11,
            r.r12, r.r13, r.r14, r.r15,
        ],
        eflags: r.rflags as u32,
        rip: r.rip,
        ..X86_64CoreRegs::default()
    };
    gdb.segments.cs = r.cs as u32;
    gdb.segments.ss = r.ss as u32;
    gdb
}
