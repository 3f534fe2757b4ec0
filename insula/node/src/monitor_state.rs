//! What the monitor of a confined node tells: how often its cores have left the node's kernel for it, and
//! what ended the node.

use std::fmt;

use insula_abi as abi;
use insula_abi::monitor::{
    EXITS, MONITOR_CORE_SIZE, MONITOR_REGISTERS, MONITOR_STATE, MONITOR_STATE_SIZE, Monitor,
    MonitorCore, MonitorEnd, MonitorExit,
};
use insula_driver::{DriverError, Mapping, OutOfRange};
use serde::Serialize;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::{Handle, NodeLog};

/// State of a monitor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct MonitorState {
    /// Exits from the node's kernel, of all cores.
    pub exits: Exits,
    /// Interrupts to other kernels that rang no doorbell, and were dropped.
    pub dropped_interrupts: u64,
    /// What ended the node, if its monitor did.
    pub ended: Option<MonitorEnding>,
}

/// Exits by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Exits {
    /// Non-maskable interrupts, among them those by which cores start each other.
    pub nmi: u64,
    /// Model-specific registers.
    pub msr: u64,
    /// Interrupts to cores.
    pub ipi: u64,
    /// I/O ports.
    pub port: u64,
    /// CPUID.
    pub cpuid: u64,
    /// Memory that is not the node's.
    pub memory: u64,
    /// All else.
    pub other: u64,
}

/// What ended a confined node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct MonitorEnding {
    /// The kind: what was accessed, `reset`, or `monitor-failed`.
    pub kind: &'static str,
    /// The address, port, register, value of the interrupt command register, or exit code.
    pub subject: String,
    /// The value that was to be written; of memory the page fault's error code.
    pub value: String,
    /// Linear address of the instruction.
    pub instruction: String,
    /// The function that it is in, and the offset, by the symbols of the node's kernel; `None` if that
    /// does not tell. The node wrote them.
    pub symbol: Option<String>,
    /// Root of the page table in use there.
    pub page_table: String,
    /// Index of the core in the node.
    pub core: u32,
    /// Why the monitor failed, if it did.
    pub message: Option<String>,
}

impl MonitorState {
    /// Reads the state of a node's monitor; `None` if it is not confined, or being assembled.
    ///
    /// # Errors
    /// The module's error.
    pub fn read(handle: &Handle) -> Result<Option<Self>, DriverError> {
        let address = handle.info.monitor;
        if address == 0 {
            return Ok(None);
        }
        let memory = handle.node.monitor()?.map()?;
        // The monitor is trusted; a header that leads astray is one that is being replaced.
        let Ok(mut state) = Self::of(&memory, address) else {
            return Ok(None);
        };
        if let Some(ended) = state.ended.as_mut().filter(|ended| ended.is_violation()) {
            let address = read::<Monitor>(&memory, address).map(|header| header.violation.rip);
            ended.symbol = address.ok().and_then(|address| symbol(handle, address));
        }
        Ok(Some(state))
    }

    fn of(memory: &Mapping, address: u64) -> Result<Self, OutOfRange> {
        let (header, cores) = header_and_cores(memory, address)?;
        Ok(Self {
            exits: Exits::of(&cores),
            dropped_interrupts: cores.iter().map(|core| core.dropped).sum(),
            ended: MonitorEnding::of(&header),
        })
    }
}

/// What a confined node accessed that ended it, in short: its kind and the subject. `None` if that is
/// unknown.
pub(crate) fn violation(handle: &Handle) -> Option<String> {
    let memory = handle.node.monitor().ok()?.map().ok()?;
    let header = read(&memory, handle.info.monitor).ok()?;
    let MonitorEnding { kind, subject, .. } = MonitorEnding::of(&header)?;
    Some(format!("{kind} {subject}"))
}

/// A core of a paused node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PausedCore {
    /// Id by which the node's kernel knows its local APIC.
    pub apic_id: u32,
    /// Its registers, as a `struct pt_regs` of Linux.
    pub registers: [u64; MONITOR_REGISTERS],
}

/// The cores of a node that is paused.
///
/// # Errors
/// When its monitor cannot be read.
pub fn paused_cores(handle: &Handle) -> Result<Vec<PausedCore>, DriverError> {
    let memory = handle.node.monitor()?.map()?;
    let (_, cores) = header_and_cores(&memory, handle.info.monitor)?;
    let paused = cores.iter().filter(|core| core.paused != 0);
    let paused = paused.map(|core| PausedCore {
        apic_id: core.guest_apic_id as u32,
        registers: core.registers,
    });
    Ok(paused.collect())
}

/// The states that the cores of a paused node have left, in the order of its cores.
///
/// # Errors
/// When its monitor cannot be read.
pub fn core_states(handle: &Handle) -> Result<Vec<Vec<u8>>, DriverError> {
    let memory = handle.node.monitor()?.map()?;
    let header: Monitor = read(&memory, handle.info.monitor)?;
    let (_, cores) = header_and_cores(&memory, handle.info.monitor)?;
    let state_of = |apic_id: u32| {
        let index = cores.iter().position(|core| core.apic_id == apic_id);
        // A core without an area is outside of the memory.
        let area = index.map_or(u64::MAX - MONITOR_STATE, |index| {
            header.cores + index as u64 * MONITOR_CORE_SIZE
        });
        let mut state = vec![0; MONITOR_STATE_SIZE as usize];
        let at = memory.offset_of(area + MONITOR_STATE, MONITOR_STATE_SIZE)?;
        memory.read(at, &mut state)?;
        Ok(state)
    };
    handle
        .cpus
        .iter()
        .map(|cpu| state_of(cpu.apic_id))
        .collect()
}

/// What a node's kernel finds in the time stamp counter beyond what the base does, modulo 2^64: a copy's goes on
/// from the snapshot's. 0 without a monitor.
///
/// # Errors
/// When its monitor cannot be read.
pub fn tsc_offset(handle: &Handle) -> Result<u64, DriverError> {
    let address = handle.info.monitor;
    if address == 0 {
        return Ok(0);
    }
    let memory = handle.node.monitor()?.map()?;
    let header: Monitor = read(&memory, address)?;
    Ok(header.tsc_offset)
}

fn header_and_cores(
    memory: &Mapping,
    address: u64,
) -> Result<(Monitor, Vec<MonitorCore>), OutOfRange> {
    let header: Monitor = read(memory, address)?;
    let cores = (0..header.cores_count.min(abi::NODE_CPUS_MAX as u32))
        .map(|index| read(memory, header.cores + u64::from(index) * MONITOR_CORE_SIZE));
    let cores = cores.collect::<Result<_, _>>()?;
    Ok((header, cores))
}

/// Names an instruction of the node's kernel.
fn symbol(handle: &Handle, address: u64) -> Option<String> {
    let log = NodeLog::open(handle).ok()?;
    let kernel = log.kernel(log.locate()?).ok()?;
    kernel.describe_code(address)
}

/// Reads a structure at a physical address.
fn read<T: FromBytes + IntoBytes + FromZeros>(
    memory: &Mapping,
    address: u64,
) -> Result<T, OutOfRange> {
    let mut value = T::new_zeroed();
    let bytes = value.as_mut_bytes();
    let offset = memory.offset_of(address, bytes.len() as u64)?;
    memory.read(offset, bytes)?;
    Ok(value)
}

impl Exits {
    fn of(cores: &[MonitorCore]) -> Self {
        let mut sums = [0_u64; EXITS];
        for core in cores {
            for (sum, count) in sums.iter_mut().zip(core.exits) {
                *sum = sum.saturating_add(count);
            }
        }
        let of = |cause: MonitorExit| sums[cause.0 as usize];
        Self {
            nmi: of(MonitorExit::NMI),
            msr: of(MonitorExit::MSR),
            ipi: of(MonitorExit::ICR),
            port: of(MonitorExit::PORT),
            cpuid: of(MonitorExit::CPUID),
            memory: of(MonitorExit::MEMORY),
            other: of(MonitorExit::OTHER),
        }
    }

    /// All of them.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.nmi + self.msr + self.ipi + self.port + self.cpuid + self.memory + self.other
    }
}

impl MonitorEnding {
    fn of(header: &Monitor) -> Option<Self> {
        let kind = match header.ended {
            MonitorEnd::RUNS => return None,
            MonitorEnd::RESET => "reset",
            MonitorEnd::MEMORY => "memory",
            MonitorEnd::PORT => "port",
            MonitorEnd::MSR => "msr",
            MonitorEnd::INTERRUPT => "interrupt",
            MonitorEnd::INSTRUCTION => "instruction",
            MonitorEnd::FAILED => "monitor-failed",
            MonitorEnd::NO_MEMORY => "no-memory",
            _ => "unknown",
        };
        let hex = |number: u64| format!("{number:#x}");
        let message = header.message.split(|&byte| byte == 0).next();
        let message = message.filter(|text| !text.is_empty());
        Some(Self {
            kind,
            subject: hex(header.violation.subject),
            value: hex(header.violation.value),
            instruction: hex(header.violation.rip),
            symbol: None,
            page_table: hex(header.violation.page_table),
            core: header.ended_core.saturating_sub(1),
            message: message.map(|text| String::from_utf8_lossy(text).into_owned()),
        })
    }
}

impl MonitorEnding {
    /// Whether the node did what it must not.
    fn is_violation(&self) -> bool {
        !matches!(self.kind, "reset" | "monitor-failed")
    }
}

impl fmt::Display for MonitorEnding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            kind,
            subject,
            value,
            instruction,
            core,
            ..
        } = self;
        write!(formatter, "{kind} {subject}, value {value}, by ")?;
        match &self.symbol {
            Some(symbol) => write!(formatter, "{symbol} ({instruction})")?,
            None => write!(formatter, "the instruction at {instruction}")?,
        }
        write!(formatter, " on its core {core}")?;
        match &self.message {
            Some(message) => write!(formatter, ": {message}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exits_of_all_cores_are_added_up() {
        let core = MonitorCore {
            exits: [1, 2, 3, 4, 5, 6, 7, 0],
            ..MonitorCore::default()
        };
        let exits = Exits::of(&[core, core]);
        assert_eq!((exits.nmi, exits.ipi, exits.total()), (2, 6, 56));
    }

    #[test]
    fn an_ending_is_told_in_words() {
        let mut header = Monitor::new_zeroed();
        assert_eq!(MonitorEnding::of(&header), None);
        header.ended = MonitorEnd::PORT;
        header.ended_core = 2;
        header.violation.subject = 0xcf9;
        let ending = MonitorEnding::of(&header).unwrap();
        assert_eq!((ending.kind, ending.subject.as_str()), ("port", "0xcf9"));
        assert_eq!((ending.core, &ending.message), (1, &None));
        let text = "port 0xcf9, value 0x0, by the instruction at 0x0 on its core 1";
        assert_eq!(ending.to_string(), text);
        assert!(ending.is_violation());
        let named = MonitorEnding {
            symbol: Some("reboot+0x4".into()),
            ..ending
        };
        let text = "port 0xcf9, value 0x0, by reboot+0x4 (0x0) on its core 1";
        assert_eq!(named.to_string(), text);
        header.ended = MonitorEnd::FAILED;
        header.message[..4].copy_from_slice(b"why\0");
        let ending = MonitorEnding::of(&header).unwrap();
        assert_eq!(ending.message.as_deref(), Some("why"));
    }
}
