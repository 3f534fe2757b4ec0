//! Segments (GDT), the task state segment that names the stacks, and the interrupt descriptor
//! table.

use core::arch::asm;
use core::mem::size_of;

#[cfg(feature = "programs")]
use super::ports::{BITMAP_SIZE, PortSet};
use super::trap;

/// The kernel's code segment.
const KERNEL_CODE: u16 = 0x08;
const KERNEL_DATA: u16 = 0x10;
/// Selector of the task state segment. The programs' segments are 0x1b and 0x23 in trap.S, with
/// their privilege level; SYSRET requires their order.
const TASK: u16 = 0x28;

/// Descriptors: 64-bit code and data, each for the kernel and for programs.
const KERNEL_CODE_DESCRIPTOR: u64 = 0x00af_9b00_0000_ffff;
const KERNEL_DATA_DESCRIPTOR: u64 = 0x00cf_9300_0000_ffff;
const USER_DATA_DESCRIPTOR: u64 = 0x00cf_f300_0000_ffff;
const USER_CODE_DESCRIPTOR: u64 = 0x00af_fb00_0000_ffff;
/// Type of an available task state segment, present.
const TASK_TYPE: u64 = 0x89 << 40;

/// Size of each interrupt stack, in bytes.
const STACK_SIZE: usize = 4096 * 2;
/// Indices of the interrupt stacks (IST), for what can occur at any instruction.
const INTERRUPT_STACK: usize = 1;
const NMI_STACK: usize = 2;
const DOUBLE_FAULT_STACK: usize = 3;
const MACHINE_CHECK_STACK: usize = 4;
const STACKS: usize = 4;

const VECTORS: usize = 256;
const NMI: usize = 2;
const DOUBLE_FAULT: usize = 8;
const MACHINE_CHECK: usize = 18;
const FIRST_INTERRUPT: usize = 32;

#[repr(C, packed(4))]
struct TaskState {
    reserved: u32,
    /// Stacks for a change of privilege level.
    rsp: [u64; 3],
    reserved_more: u64,
    /// Interrupt stacks 1 to 7.
    stacks: [u64; 7],
    reserved_last: u64,
    reserved_short: u16,
    /// Offset of the I/O permission bitmap. Beyond the limit: there is none, so programs cannot use
    /// ports.
    ports: u16,
}

/// Offset beyond the limit of the task state segment.
const NO_PORTS: u16 = u16::MAX;
/// Size of the task state segment with the bitmap of ports that follows it.
#[cfg(feature = "programs")]
const TASK_SIZE: usize = size_of::<TaskState>() + BITMAP_SIZE;
#[cfg(not(feature = "programs"))]
const TASK_SIZE: usize = size_of::<TaskState>();

#[repr(C, align(16))]
#[derive(Clone, Copy)]
struct Gate {
    low: u64,
    high: u64,
}

#[repr(C, align(16))]
struct Stack([u8; STACK_SIZE]);

/// Descriptor tables of a core, and the stacks that they name.
#[repr(C, align(64))]
pub(super) struct Descriptors {
    segments: [u64; 7],
    task: TaskState,
    /// Follows the task state segment.
    #[cfg(feature = "programs")]
    denied_ports: [u8; BITMAP_SIZE],
    gates: [Gate; VECTORS],
    entry_stack: Stack,
    stacks: [Stack; STACKS],
}

#[cfg(feature = "programs")]
const _: () = {
    let end = core::mem::offset_of!(Descriptors, task) + size_of::<TaskState>();
    assert!(core::mem::offset_of!(Descriptors, denied_ports) == end);
};

#[repr(C, packed)]
struct Pointer {
    limit: u16,
    base: u64,
}

impl Descriptors {
    pub(super) fn new() -> Self {
        let mut descriptors = Self {
            segments: [0; 7],
            task: TaskState {
                reserved: 0,
                rsp: [0; 3],
                reserved_more: 0,
                stacks: [0; 7],
                reserved_last: 0,
                reserved_short: 0,
                ports: 0,
            },
            #[cfg(feature = "programs")]
            denied_ports: [u8::MAX; BITMAP_SIZE],
            gates: [Gate { low: 0, high: 0 }; VECTORS],
            entry_stack: Stack([0; STACK_SIZE]),
            stacks: [const { Stack([0; STACK_SIZE]) }; STACKS],
        };
        descriptors.fill();
        descriptors
    }

    /// Fills in what does not depend on addresses; all else is zero.
    pub(super) fn fill(&mut self) {
        self.segments = [
            0,
            KERNEL_CODE_DESCRIPTOR,
            KERNEL_DATA_DESCRIPTOR,
            USER_DATA_DESCRIPTOR,
            USER_CODE_DESCRIPTOR,
            0,
            0,
        ];
        self.task.ports = NO_PORTS;
    }

    /// Lets programs use these ports, and no others.
    #[cfg(feature = "programs")]
    pub(super) fn permit_ports(&mut self, ports: Option<&PortSet>) {
        if let Some(ports) = ports {
            self.denied_ports = *ports.bitmap();
        }
        self.task.ports = match ports {
            Some(_) => size_of::<TaskState>() as u16,
            None => NO_PORTS,
        };
    }

    /// Whether programs may use any.
    #[cfg(feature = "programs")]
    pub(super) fn has_ports(&self) -> bool {
        self.task.ports != NO_PORTS
    }

    /// Fills in the addresses and loads the tables, which must stay where they are.
    pub(super) fn load(&mut self) {
        let end = |stack: &Stack| &raw const *stack as u64 + STACK_SIZE as u64;
        self.task.rsp = [end(&self.entry_stack), 0, 0];
        let mut stacks = [0; 7];
        for (number, stack) in self.stacks.iter().enumerate() {
            stacks[number] = end(stack);
        }
        self.task.stacks = stacks;
        let task = &raw const self.task as u64;
        let limit = TASK_SIZE as u64 - 1;
        self.segments[5] = limit | (task & 0xff_ffff) << 16 | TASK_TYPE | (task >> 24 & 0xff) << 56;
        self.segments[6] = task >> 32;
        for (vector, gate) in self.gates.iter_mut().enumerate() {
            *gate = Gate::to(
                trap::entry(vector),
                stack_of(vector),
                is_for_programs(vector),
            );
        }
        self.use_tables();
    }

    fn use_tables(&self) {
        let segments = Pointer {
            limit: size_of::<[u64; 7]>() as u16 - 1,
            base: &raw const self.segments as u64,
        };
        let gates = Pointer {
            limit: size_of::<[Gate; VECTORS]>() as u16 - 1,
            base: &raw const self.gates as u64,
        };
        // SAFETY: 1. the tables are complete and stay (`PerCore::install` takes a static one). 2.
        // The selectors are those of the table just loaded. 3. The far return goes to the next
        // instruction.
        unsafe {
            asm!(
                "lgdt [{segments}]",
                "mov ds, {data:x}",
                "mov es, {data:x}",
                "mov ss, {data:x}",
                "mov fs, {null:x}",
                "mov gs, {null:x}",
                "ltr {task:x}",
                "push {code}",
                "lea {next}, [rip + 2f]",
                "push {next}",
                "retfq",
                "2:",
                "lidt [{gates}]",
                segments = in(reg) &raw const segments,
                gates = in(reg) &raw const gates,
                data = in(reg) u64::from(KERNEL_DATA),
                null = in(reg) 0_u64,
                task = in(reg) u64::from(TASK),
                code = in(reg) u64::from(KERNEL_CODE),
                next = out(reg) _,
            );
        }
    }
}

fn stack_of(vector: usize) -> usize {
    match vector {
        NMI => NMI_STACK,
        DOUBLE_FAULT => DOUBLE_FAULT_STACK,
        MACHINE_CHECK => MACHINE_CHECK_STACK,
        FIRST_INTERRUPT.. => INTERRUPT_STACK,
        _ => 0,
    }
}

/// Whether programs may raise the exception by an instruction: breakpoint and overflow.
fn is_for_programs(vector: usize) -> bool {
    vector == 3 || vector == 4
}

impl Gate {
    /// Makes a present interrupt gate.
    fn to(address: u64, stack: usize, for_programs: bool) -> Self {
        let level = if for_programs { 3 } else { 0 };
        let kind = 0x8e00 | level << 13 | stack as u64;
        Self {
            low: address & 0xffff
                | u64::from(KERNEL_CODE) << 16
                | kind << 32
                | (address >> 16 & 0xffff) << 48,
            high: address >> 32,
        }
    }
}
