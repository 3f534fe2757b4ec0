//! Exceptions and interrupts: what an act does wrong is given up, see trap.S.

use core::arch::asm;
use core::mem::offset_of;

use insula_bare::cpu;

use crate::attack::Core;

const EFER: u32 = 0xc000_0080;
const CODE: u64 = 0x08;
const TASK: u16 = 0x18;
const CODE_DESCRIPTOR: u64 = 0x00af_9b00_0000_ffff;
const DATA_DESCRIPTOR: u64 = 0x00cf_9300_0000_ffff;
/// An available task state segment, present.
const TASK_TYPE: u64 = 0x89 << 40;
/// A present interrupt gate.
const GATE: u64 = 0x8e << 40;
const VECTORS: usize = 256;
const EXCEPTIONS: usize = 32;
const NMI: usize = 2;
const PAGE: usize = 4096;
/// Bytes of code for each exception.
const STUB: u64 = 16;

/// What an exception puts back; trap.S has the offsets.
#[repr(C)]
#[derive(Debug, Default)]
struct Frame {
    rsp: u64,
    cr3: u64,
    cr0: u64,
    cr4: u64,
    efer: u64,
}

const _: () = {
    assert!(offset_of!(Frame, cr3) == 8);
    assert!(offset_of!(Frame, efer) == 32);
};

/// The stack of exceptions.
#[repr(C, align(4096))]
#[derive(Debug)]
struct ExceptionStack {
    frame: Frame,
    rest: [u8; PAGE - size_of::<Frame>()],
}

/// A core's descriptor tables and stacks.
#[repr(C, align(4096))]
#[derive(Debug)]
pub struct Tables {
    exceptions: ExceptionStack,
    interrupts: [u8; PAGE],
    gates: [[u64; 2]; VECTORS],
    segments: [u64; 5],
    /// A task state segment, in 32-bit words.
    task: [u32; 26],
}

#[repr(C, packed)]
struct Pointer {
    limit: u16,
    base: u64,
}

#[cfg(target_os = "none")]
unsafe extern "C" {
    fn hostile_attempt(act: extern "C" fn(&mut Core), core: &mut Core, frame: *mut Frame) -> i32;
    fn hostile_nmi();
    fn hostile_interrupt();
    static hostile_exceptions: u8;
}

/// Addresses of the handlers: first exception, NMI, interrupts.
#[cfg(target_os = "none")]
fn handlers() -> [u64; 3] {
    [
        &raw const hostile_exceptions as u64,
        hostile_nmi as *const () as u64,
        hostile_interrupt as *const () as u64,
    ]
}

#[cfg(not(target_os = "none"))]
fn handlers() -> [u64; 3] {
    [0; 3]
}

impl Tables {
    /// Tables that are not filled yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            exceptions: ExceptionStack {
                frame: Frame {
                    rsp: 0,
                    cr3: 0,
                    cr0: 0,
                    cr4: 0,
                    efer: 0,
                },
                rest: [0; PAGE - size_of::<Frame>()],
            },
            interrupts: [0; PAGE],
            gates: [[0; 2]; VECTORS],
            segments: [0; 5],
            task: [0; 26],
        }
    }

    /// Fills and loads them.
    ///
    /// # Safety
    /// They are the calling core's, and stay.
    pub unsafe fn install(&mut self) {
        let [exceptions, nmi, interrupt] = handlers();
        for (vector, gate) in self.gates.iter_mut().enumerate() {
            *gate = match vector {
                NMI => gate_to(nmi, 2),
                vector if vector < EXCEPTIONS => gate_to(exceptions + STUB * vector as u64, 1),
                _ => gate_to(interrupt, 2),
            };
        }
        // The ends of the stacks of exceptions and interrupts: IST 1 and 2.
        let ends = [
            &raw const self.exceptions as u64,
            self.interrupts.as_ptr() as u64,
        ];
        for (number, start) in ends.into_iter().enumerate() {
            let end = start + PAGE as u64 - 16;
            self.task[9 + 2 * number] = end as u32;
            self.task[10 + 2 * number] = (end >> 32) as u32;
        }
        self.task[25] = 104 << 16;
        let task = self.task.as_ptr() as u64;
        let limit = size_of_val(&self.task) as u64 - 1;
        let low = limit | (task & 0xff_ffff) << 16 | TASK_TYPE | (task >> 24 & 0xff) << 56;
        self.segments = [0, CODE_DESCRIPTOR, DATA_DESCRIPTOR, low, task >> 32];
        // SAFETY: by the caller; the tables hold what the processor wants.
        unsafe { self.load() }
        self.record();
    }

    unsafe fn load(&self) {
        let segments = Pointer {
            limit: size_of_val(&self.segments) as u16 - 1,
            base: self.segments.as_ptr() as u64,
        };
        let gates = Pointer {
            limit: size_of_val(&self.gates) as u16 - 1,
            base: self.gates.as_ptr() as u64,
        };
        // SAFETY: by the caller.
        unsafe {
            asm!(
                "lgdt [{segments}]",
                "lidt [{gates}]",
                "push {code}",
                "lea {scratch}, [rip + 2f]",
                "push {scratch}",
                "retfq",
                "2:",
                "mov ss, {data:x}",
                "mov ds, {data:x}",
                "mov es, {data:x}",
                "ltr {task:x}",
                segments = in(reg) &segments,
                gates = in(reg) &gates,
                code = in(reg) CODE,
                data = in(reg) 0x10_u64,
                task = in(reg) TASK,
                scratch = out(reg) _,
            );
        }
    }

    /// Records what an exception puts back: the registers as they are now.
    fn record(&mut self) {
        let (cr0, cr4): (u64, u64);
        // SAFETY: reading has no effect.
        unsafe {
            asm!("mov {}, cr0", "mov {}, cr4", out(reg) cr0, out(reg) cr4, options(nomem, nostack));
            self.exceptions.frame = Frame {
                rsp: 0,
                cr3: cpu::root(),
                cr0,
                cr4,
                efer: cpu::read_msr(EFER),
            };
        }
    }
}

impl Default for Tables {
    fn default() -> Self {
        Self::new()
    }
}

fn gate_to(handler: u64, stack: u64) -> [u64; 2] {
    let low = handler & 0xffff | CODE << 16 | stack << 32 | GATE | (handler >> 16 & 0xffff) << 48;
    [low, handler >> 32]
}

/// Lets a core act. Returns the vector of the exception that ended it, if one did.
#[cfg(target_os = "none")]
pub fn attempt(core: &mut Core, act: extern "C" fn(&mut Core)) -> Option<u8> {
    let tables: *mut Tables = core.tables;
    // SAFETY: the tables are the core's own, and nobody has a reference to them. An act has nothing to
    // drop, so it may be left anywhere.
    let ended = unsafe {
        (*tables).record();
        hostile_attempt(act, core, &raw mut (*tables).exceptions.frame)
    };
    u8::try_from(ended).ok()
}

/// A host attacks nothing.
#[cfg(not(target_os = "none"))]
pub fn attempt(core: &mut Core, _: extern "C" fn(&mut Core)) -> Option<u8> {
    let _ = core.tables;
    None
}

/// A triple fault: neither the exception nor those of its delivery have a handler.
pub fn triple_fault() -> ! {
    let none = Pointer { limit: 0, base: 0 };
    loop {
        // SAFETY: it ends this kernel, which is what is wanted.
        unsafe { asm!("cli", "lidt [{}]", "int3", in(reg) &none) }
    }
}
