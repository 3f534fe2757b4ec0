//! The virtual machine control block (VMCB): what exits, and the guest's state.
//!
//! Source: AMD APM volume 2, appendix B "Layout of VMCB". Fields that are not used are left out.

use core::mem::offset_of;

use bitflags::bitflags;

use crate::start_state::{DR6, DR7, LOCAL_TABLE, PAT, RFLAGS, Segment, StartState, TABLE};

bitflags! {
    /// Events and instructions that exit, offset 0xc.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Intercepts: u64 {
        /// Interrupts.
        const INTERRUPT = 1 << 0;
        /// Non-maskable interrupts.
        const NMI = 1 << 1;
        /// INIT.
        const INIT = 1 << 3;
        /// Virtual interrupts.
        const VIRTUAL_INTERRUPT = 1 << 4;
        /// CPUID.
        const CPUID = 1 << 18;
        /// IRET.
        const IRET = 1 << 20;
        /// INVD.
        const INVD = 1 << 22;
        /// INVLPGA.
        const INVLPGA = 1 << 26;
        /// IN and OUT to ports of the permission map.
        const PORTS = 1 << 27;
        /// RDMSR and WRMSR of registers of the permission map.
        const MSRS = 1 << 28;
        /// Triple faults.
        const SHUTDOWN = 1 << 31;
        /// VMRUN, which has to exit.
        const VMRUN = 1 << 32;
        /// VMMCALL.
        const VMMCALL = 1 << 33;
        /// VMLOAD.
        const VMLOAD = 1 << 34;
        /// VMSAVE.
        const VMSAVE = 1 << 35;
        /// STGI.
        const STGI = 1 << 36;
        /// CLGI.
        const CLGI = 1 << 37;
        /// SKINIT.
        const SKINIT = 1 << 38;
        /// WBINVD and WBNOINVD.
        const WBINVD = 1 << 41;
    }
}

/// Exit codes (AMD APM volume 2, appendix C).
pub mod exit_code {
    /// Interrupt.
    pub const INTERRUPT: u64 = 0x60;
    /// Non-maskable interrupt.
    pub const NMI: u64 = 0x61;
    /// Debug exception.
    pub const DEBUG: u64 = 0x41;
    /// Alignment check.
    pub const ALIGNMENT: u64 = 0x51;
    /// INIT.
    pub const INIT: u64 = 0x63;
    /// Virtual interrupt.
    pub const VIRTUAL_INTERRUPT: u64 = 0x64;
    /// CPUID.
    pub const CPUID: u64 = 0x72;
    /// IRET.
    pub const IRET: u64 = 0x74;
    /// INVD.
    pub const INVD: u64 = 0x76;
    /// INVLPGA.
    pub const INVLPGA: u64 = 0x7a;
    /// IN or OUT.
    pub const PORT: u64 = 0x7b;
    /// RDMSR or WRMSR.
    pub const MSR: u64 = 0x7c;
    /// Triple fault.
    pub const SHUTDOWN: u64 = 0x7f;
    /// First of the instructions of SVM.
    pub const VMRUN: u64 = 0x80;
    /// VMMCALL.
    pub const VMMCALL: u64 = 0x81;
    /// Last of them.
    pub const SKINIT: u64 = 0x86;
    /// WBINVD or WBNOINVD.
    pub const WBINVD: u64 = 0x89;
    /// Nested page fault.
    pub const NESTED_PAGE_FAULT: u64 = 0x400;
}

/// The control area.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Control {
    reserved0: [u8; 8],
    /// Exceptions that exit, a bit for each vector.
    pub exceptions: u32,
    intercepts: [u32; 2],
    reserved1: [u8; 0x2c],
    /// Physical address of the I/O permission map.
    pub port_map: u64,
    /// Physical address of the MSR permission map.
    pub msr_map: u64,
    /// Added to the time stamp counter.
    pub tsc_offset: u64,
    /// Address space identifier, not 0.
    pub asid: u32,
    /// Translations to flush at the next VMRUN: [`FLUSH_ALL`] or 0.
    pub tlb_control: u32,
    /// A pending virtual interrupt, and how the guest's are masked.
    pub virtual_interrupt: u64,
    /// Bit 0: interrupts are blocked for one instruction.
    pub interrupt_shadow: u64,
    /// Why the guest exited.
    pub exit_code: u64,
    /// Details.
    pub exit_info1: u64,
    /// More details.
    pub exit_info2: u64,
    /// An event that was being delivered at the exit, as in `event_injection`.
    pub exit_interrupt_info: u64,
    /// Bit 0: nested paging.
    pub nested: u64,
    reserved2: [u8; 0x10],
    /// Event to deliver at the next VMRUN.
    pub event_injection: u64,
    /// Physical address of the root of the nested page table.
    pub nested_root: u64,
    last_branch: u64,
    /// Parts that have not changed since the last VMRUN: none.
    pub clean: u64,
    /// Address of the next instruction, if the processor saves it.
    pub next_rip: u64,
    reserved3: [u8; 0x330],
}

/// The state save area.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "they are the processor's names")]
pub struct State {
    pub es: Segment,
    pub cs: Segment,
    pub ss: Segment,
    pub ds: Segment,
    pub fs: Segment,
    pub gs: Segment,
    pub gdtr: Segment,
    pub ldtr: Segment,
    pub idtr: Segment,
    pub tr: Segment,
    reserved0: [u8; 0x2b],
    pub cpl: u8,
    reserved1: u32,
    pub efer: u64,
    reserved2: [u8; 0x70],
    pub cr4: u64,
    pub cr3: u64,
    pub cr0: u64,
    pub dr7: u64,
    pub dr6: u64,
    pub rflags: u64,
    pub rip: u64,
    reserved3: [u8; 0x58],
    pub rsp: u64,
    reserved4: [u8; 0x18],
    pub rax: u64,
    pub star: u64,
    pub lstar: u64,
    pub cstar: u64,
    pub sfmask: u64,
    pub kernel_gs_base: u64,
    pub sysenter_cs: u64,
    pub sysenter_esp: u64,
    pub sysenter_eip: u64,
    pub cr2: u64,
    reserved5: [u8; 0x20],
    pub g_pat: u64,
    reserved6: [u8; 0x990],
}

/// A control block.
#[repr(C, align(4096))]
#[derive(Clone, Copy, Debug)]
pub struct Vmcb {
    /// What exits, and why it did.
    pub control: Control,
    /// The guest's registers.
    pub state: State,
}

const _: () = {
    assert!(size_of::<Vmcb>() == 0x1000);
    assert!(offset_of!(Vmcb, state) == 0x400);
    assert!(offset_of!(Control, exceptions) == 8);
    assert!(offset_of!(Control, port_map) == 0x40);
    assert!(offset_of!(Control, asid) == 0x58);
    assert!(offset_of!(Control, virtual_interrupt) == 0x60);
    assert!(offset_of!(Control, interrupt_shadow) == 0x68);
    assert!(offset_of!(Control, exit_code) == 0x70);
    assert!(offset_of!(Control, nested) == 0x90);
    assert!(offset_of!(Control, event_injection) == 0xa8);
    assert!(offset_of!(Control, nested_root) == 0xb0);
    assert!(offset_of!(Control, clean) == 0xc0);
    assert!(offset_of!(Control, next_rip) == 0xc8);
    assert!(offset_of!(State, cpl) == 0xcb);
    assert!(offset_of!(State, efer) == 0xd0);
    assert!(offset_of!(State, cr4) == 0x148);
    assert!(offset_of!(State, rip) == 0x178);
    assert!(offset_of!(State, rsp) == 0x1d8);
    assert!(offset_of!(State, rax) == 0x1f8);
    assert!(offset_of!(State, cr2) == 0x240);
    assert!(offset_of!(State, g_pat) == 0x268);
};

/// [`Control::tlb_control`]: flush all translations.
pub const FLUSH_ALL: u32 = 1;
/// [`Control::virtual_interrupt`]: one is pending, of the vector in bits 32 to 39.
pub const VIRTUAL_PENDING: u64 = 1 << 8;
/// [`Control::virtual_interrupt`]: whatever the guest's task priority is.
pub const VIRTUAL_ANY_PRIORITY: u64 = 1 << 20;
/// [`Control::virtual_interrupt`]: interrupts are masked as they were before VMRUN, whatever the guest's
/// flag is.
pub const VIRTUAL_MASKING: u64 = 1 << 24;
/// [`Control::event_injection`]: a non-maskable interrupt.
pub const INJECT_NMI: u64 = 1 << 31 | 2 << 8 | 2;
/// [`Control::event_injection`]: an invalid opcode exception.
pub const INJECT_INVALID_OPCODE: u64 = 1 << 31 | 3 << 8 | 6;
/// [`Control::event_injection`]: a general protection fault, error code 0.
pub const INJECT_GENERAL_PROTECTION: u64 = 1 << 31 | 1 << 11 | 3 << 8 | 13;
/// [`Control::event_injection`]: a debug exception.
pub const INJECT_DEBUG: u64 = 1 << 31 | 3 << 8 | 1;
/// [`Control::event_injection`]: an alignment check, error code 0.
pub const INJECT_ALIGNMENT_CHECK: u64 = 1 << 31 | 1 << 11 | 3 << 8 | 17;
/// [`Control::exceptions`]: those that a guest can have delivered again and again by one instruction,
/// which then never ends, and nothing but their exit interrupts it (CVE-2015-5307, CVE-2015-8104).
pub const ENDLESS_EXCEPTIONS: u32 = 1 << 1 | 1 << 17;

/// EFER: SVM is enabled, as it has to be in the guest's.
pub const EFER_SVME: u64 = 1 << 12;

/// The event to deliver for one whose delivery was interrupted; 0 for none. Only an interrupt has a
/// vector above those of exceptions, whatever type an emulator says.
#[must_use]
pub const fn to_deliver(undelivered: u64) -> u64 {
    const TYPE: u64 = 7 << 8;
    const EXCEPTION: u64 = 3 << 8;
    let is_interrupt = undelivered & 0xff >= 32 && undelivered & TYPE == EXCEPTION;
    match undelivered & 1 << 31 {
        0 => 0,
        _ if is_interrupt => undelivered & !TYPE,
        _ => undelivered,
    }
}

impl Vmcb {
    /// Sets what exits.
    pub fn intercept(&mut self, what: Intercepts) {
        self.control.intercepts = [what.bits() as u32, (what.bits() >> 32) as u32];
    }

    /// What exits.
    #[must_use]
    pub fn intercepts(&self) -> Intercepts {
        let [low, high] = self.control.intercepts;
        Intercepts::from_bits_retain(u64::from(high) << 32 | u64::from(low))
    }
}

impl State {
    /// Sets the state of a core that starts.
    pub fn start(&mut self, start: &StartState) {
        self.cs = start.code;
        [self.es, self.ss, self.ds, self.fs, self.gs] = [start.data; 5];
        [self.gdtr, self.idtr] = [TABLE; 2];
        self.ldtr = LOCAL_TABLE;
        self.tr = start.task;
        self.cpl = 0;
        self.efer = start.efer | EFER_SVME;
        [self.cr0, self.cr3, self.cr4] = [start.cr0, start.cr3, start.cr4];
        self.rip = start.rip;
        self.rflags = RFLAGS;
        [self.rsp, self.rax, self.cr2] = [0; 3];
        [self.dr6, self.dr7] = [DR6, DR7];
        self.g_pat = PAT;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_delivered_is_delivered_again() {
        assert_eq!(to_deliver(0x3ec), 0, "not valid");
        assert_eq!(to_deliver(INJECT_NMI), INJECT_NMI);
        let page_fault = 0x2_8000_0b0e;
        assert_eq!(to_deliver(page_fault), page_fault);
        assert_eq!(to_deliver(0x8000_00ec), 0x8000_00ec);
        assert_eq!(to_deliver(0x8000_03ec), 0x8000_00ec, "an interrupt");
        assert_eq!(to_deliver(0x8000_0480), 0x8000_0480, "INT");
    }
}
