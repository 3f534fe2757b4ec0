//! AMD's virtualization (SVM): the guest of a core.
//!
//! The global interrupt flag is clear as long as the monitor runs, so nothing interrupts it; VMRUN sets
//! it and an exit clears it. An NMI, or an INIT, that exits is still pending then: the monitor takes it by
//! setting the flag for an instruction.
//!
//! The guest's control block is loaded and stored whole at each exit, so nothing of it is cached
//! (`clean` stays 0).
//!
//! Source: AMD APM volume 2, chapter 15 "Secure Virtual Machine".

mod intercepts;
pub mod permissions;
mod shared;
pub mod vmcb;

use core::arch::asm;

use insula_abi::monitor::MONITOR_REGISTERS;
use insula_bare::cpu::{self, read_msr, write_msr};

use crate::area::{Area, AreaPage};
use crate::exit::Exit;
use crate::guest::{self, Guest as _, GuestRegisters, RESET_RIP, RESET_SELECTOR, Unsupported};
use crate::share::Entry;
use crate::start_state::{EFER_LMA, StartState};
use intercepts::{intercepts, resumed_intercepts};
use permissions::{MSR_MAP, PORT_MAP};
use vmcb::{
    EFER_SVME, ENDLESS_EXCEPTIONS, FLUSH_ALL, INJECT_ALIGNMENT_CHECK, INJECT_DEBUG,
    INJECT_GENERAL_PROTECTION, INJECT_INVALID_OPCODE, INJECT_NMI, Intercepts, State,
    VIRTUAL_ANY_PRIORITY, VIRTUAL_PENDING, Vmcb, exit_code,
};

const EFER: u32 = 0xc000_0080;
/// VM_CR, and its bit by which firmware disables SVM.
const VM_CR: u32 = 0xc001_0114;
const VM_CR_SVMDIS: u64 = 1 << 4;
/// Physical address of the page in which VMRUN saves the monitor's state.
const VM_HSAVE_PA: u32 = 0xc001_0117;
/// The guest has interrupts on.
const RFLAGS_IF: u64 = 1 << 9;
/// Bits of EFER that a guest can set: SCE, LME, LMA, NXE, LMSLE, FFXSR, TCE, AUTOIBRS.
const EFER_GUEST: u64 = 0x0020_ed01;

/// Instructions whose length is known to those processors that do not save the next address.
const LENGTH: u64 = 2;

/// The guest of a core.
#[derive(Debug)]
pub struct Guest {
    vmcb: &'static mut Vmcb,
    /// Physical addresses of the guest's control block, and of that for the monitor's registers.
    blocks: [u64; 2],
    /// General registers that the control block does not hold.
    registers: GuestRegisters,
    /// Whether the processor saves the address of the next instruction.
    has_next_rip: bool,
    /// An NMI was delivered, and its handler has not returned.
    in_nmi: bool,
    /// Another one is to be delivered afterwards.
    nmi_pending: bool,
}

/// What a paused guest was doing.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Paused {
    state: State,
    registers: GuestRegisters,
    intercepts: u64,
    interrupt_shadow: u64,
    event_injection: u64,
    in_nmi: u64,
    nmi_pending: u64,
}

#[cfg(target_os = "none")]
unsafe extern "C" {
    fn vmm_svm_enter(guest: u64, host: u64, registers: *mut GuestRegisters);
}

/// Enables SVM on the calling core and takes interrupts away from it, for good.
fn enable(host_state: AreaPage) -> Result<(), Unsupported> {
    const NESTED_PAGING: u32 = 1 << 0;
    let has = |leaf| cpu::cpuid(0x8000_0000, 0).eax >= leaf;
    if !has(0x8000_000a) || cpu::cpuid(0x8000_0001, 0).ecx & 1 << 2 == 0 {
        return Err(Unsupported::Missing("SVM"));
    }
    if cpu::cpuid(0x8000_000a, 0).edx & NESTED_PAGING == 0 {
        return Err(Unsupported::Missing("nested paging"));
    }
    // SAFETY: 1. a processor with SVM has these registers. 2. The page is the core's own.
    unsafe {
        if read_msr(VM_CR) & VM_CR_SVMDIS != 0 {
            return Err(Unsupported::Disabled);
        }
        write_msr(EFER, read_msr(EFER) | EFER_SVME);
        write_msr(VM_HSAVE_PA, host_state.frame.0);
        asm!("clgi", options(nostack));
    }
    Ok(())
}

/// Takes the NMI or INIT that has exited.
fn take_pending() {
    // SAFETY: interrupts are off; the kernel's handler ignores an NMI, and an INIT ends all.
    unsafe { asm!("stgi", "nop", "clgi", options(nostack)) }
}

impl Guest {
    /// Creates the guest of a core, which has enabled SVM.
    ///
    /// # Safety
    /// There is no other for this area.
    unsafe fn new(area: Area) -> Self {
        let (block, host) = (area.control_block(), area.host_control_block());
        // SAFETY: 1. the page is zero, which is valid, and belongs to this value alone. 2. The
        // monitor's registers are saved to a page of its own, from where enter.S loads them.
        let vmcb = unsafe {
            asm!("vmsave rax", in("rax") host.frame.0, options(nostack, preserves_flags));
            &mut *(block.start as *mut Vmcb)
        };
        vmcb.control.port_map = area.physical(PORT_MAP.address()).0;
        vmcb.control.msr_map = area.physical(MSR_MAP.address()).0;
        vmcb.control.exceptions = ENDLESS_EXCEPTIONS;
        vmcb.control.asid = 1;
        vmcb.control.nested = 1;
        vmcb.control.nested_root = area.header().nested_page_table().0;
        vmcb.control.tlb_control = FLUSH_ALL;
        let has_next_rip = cpu::cpuid(0x8000_000a, 0).edx & 1 << 3 != 0;
        Self {
            vmcb,
            blocks: [block.frame.0, host.frame.0],
            registers: GuestRegisters::default(),
            has_next_rip,
            in_nmi: false,
            nmi_pending: false,
        }
    }

    /// Forgets what was under way.
    fn restart(&mut self) {
        self.registers = GuestRegisters::default();
        self.vmcb.control.interrupt_shadow = 0;
        self.vmcb.control.event_injection = 0;
        self.vmcb.control.virtual_interrupt = 0;
        (self.in_nmi, self.nmi_pending) = (false, false);
        self.vmcb.intercept(intercepts(self.has_next_rip));
        self.flush();
    }

    /// Has an event delivered again whose delivery was interrupted by the exit.
    fn keep_undelivered(&mut self) {
        let control = &mut self.vmcb.control;
        control.event_injection = vmcb::to_deliver(control.exit_interrupt_info);
    }

    /// Decodes the exit.
    fn exit(&self) -> Exit {
        let control = &self.vmcb.control;
        let info = control.exit_info1;
        match control.exit_code {
            exit_code::NMI => Exit::Nmi,
            exit_code::INIT => Exit::Init,
            exit_code::DEBUG => Exit::Exception(INJECT_DEBUG),
            exit_code::ALIGNMENT => Exit::Exception(INJECT_ALIGNMENT_CHECK),
            exit_code::CPUID => Exit::Cpuid,
            exit_code::IRET => Exit::InterruptReturn,
            exit_code::VIRTUAL_INTERRUPT => Exit::InterruptWindow,
            exit_code::MSR if info == 0 => Exit::ReadMsr(self.registers.rcx as u32),
            exit_code::MSR => Exit::WriteMsr {
                register: self.registers.rcx as u32,
                value: self.registers.rdx << 32 | self.vmcb.state.rax & 0xffff_ffff,
            },
            exit_code::PORT => self.port(info),
            exit_code::WBINVD | exit_code::INVD => Exit::FlushCaches,
            exit_code::NESTED_PAGE_FAULT => Exit::Memory {
                address: control.exit_info2,
                error: info,
            },
            exit_code::SHUTDOWN => Exit::Shutdown,
            code @ (exit_code::VMRUN..=exit_code::SKINIT | exit_code::INVLPGA) => {
                Exit::Virtualization(code)
            }
            code => Exit::Other(code),
        }
    }

    /// Decodes an access to a port (AMD APM volume 2, 15.10.2).
    fn port(&self, info: u64) -> Exit {
        let port = (info >> 16) as u16;
        let size = (info >> 4 & 7) as u8;
        match (info & 1 << 2 != 0, info & 1 != 0) {
            (true, _) => Exit::PortString(port),
            (false, true) => Exit::ReadPort { port, size },
            (false, false) => Exit::WritePort {
                port,
                size,
                value: self.vmcb.state.rax as u32,
            },
        }
    }

    fn intercept_return(&mut self, exits: bool) {
        let mut intercepts = self.vmcb.intercepts();
        intercepts.set(Intercepts::IRET, exits);
        self.vmcb.intercept(intercepts);
    }
}

impl guest::Guest for Guest {
    const MAPS_ALL_REGISTERS: bool = false;

    unsafe fn enable(area: Area) -> Result<Self, Unsupported> {
        enable(area.host_state())?;
        // SAFETY: as promised by the caller.
        let mut guest = unsafe { Self::new(area) };
        guest.reset();
        Ok(guest)
    }

    fn leave() {
        // SAFETY: interrupts are off; the kernel's handler ignores an NMI, and an INIT ends all. Without
        // SVM nothing was taken away.
        unsafe {
            if read_msr(EFER) & EFER_SVME != 0 {
                asm!("stgi", options(nostack));
            }
        }
    }

    fn reset(&mut self) {
        self.restart();
        self.vmcb
            .state
            .start(&StartState::reset(RESET_SELECTOR, RESET_RIP));
    }

    fn start_up(&mut self, page: u8) {
        self.restart();
        self.vmcb
            .state
            .start(&StartState::reset(u16::from(page) << 8, 0));
    }

    fn enter_kernel(&mut self, entry: u64, page_table: u64, argument: u64) {
        self.restart();
        self.vmcb
            .state
            .start(&StartState::kernel(entry, page_table));
        self.registers.rsi = argument;
    }

    type Paused = Paused;

    fn disguise(&mut self, tsc_offset: u64) {
        self.vmcb.control.tsc_offset = tsc_offset;
        let intercepts = self.vmcb.intercepts() | Intercepts::CPUID;
        self.vmcb.intercept(intercepts);
        MSR_MAP.disguise();
    }

    fn pause(&mut self) -> Paused {
        let Vmcb { control, state } = &*self.vmcb;
        let paused = Paused {
            state: *state,
            registers: self.registers,
            intercepts: self.vmcb.intercepts().bits(),
            interrupt_shadow: control.interrupt_shadow,
            event_injection: control.event_injection,
            in_nmi: self.in_nmi.into(),
            nmi_pending: self.nmi_pending.into(),
        };
        self.reset();
        paused
    }

    fn resume(&mut self, paused: Paused) {
        self.vmcb.state = paused.state;
        self.vmcb.state.efer |= EFER_SVME;
        self.registers = paused.registers;
        self.vmcb
            .intercept(resumed_intercepts(paused.intercepts, self.has_next_rip));
        self.vmcb.control.interrupt_shadow = paused.interrupt_shadow;
        self.vmcb.control.event_injection = paused.event_injection;
        (self.in_nmi, self.nmi_pending) = (paused.in_nmi != 0, paused.nmi_pending != 0);
        self.flush();
    }

    fn pt_regs(&self) -> [u64; MONITOR_REGISTERS] {
        let state = &self.vmcb.state;
        let [cs, ss] = [state.cs, state.ss].map(|segment| segment.selector.into());
        let frame = [state.rip, cs, state.rflags, state.rsp, ss];
        guest::pt_regs(&self.registers, state.rax, frame)
    }

    fn flush(&mut self) {
        self.vmcb.control.tlb_control = FLUSH_ALL;
    }

    #[cfg(target_os = "none")]
    fn run(&mut self) -> Exit {
        let [guest, host] = self.blocks;
        // SAFETY: 1. the control block and what it names are the guest's. 2. The nested page table
        // keeps it off all other memory. 3. The registers stay borrowed.
        unsafe { vmm_svm_enter(guest, host, &raw mut self.registers) }
        self.vmcb.control.tlb_control = 0;
        self.keep_undelivered();
        let exit = self.exit();
        if matches!(exit, Exit::Nmi | Exit::Init) {
            take_pending();
        }
        exit
    }

    /// Runs nothing: a host has no guests.
    #[cfg(not(target_os = "none"))]
    fn run(&mut self) -> Exit {
        self.keep_undelivered();
        let _ = (self.blocks, take_pending as fn());
        self.exit()
    }

    fn skip_instruction(&mut self) {
        let Vmcb { control, state } = &mut *self.vmcb;
        state.rip = match control.exit_code {
            exit_code::PORT => control.exit_info2,
            _ if self.has_next_rip => control.next_rip,
            _ => state.rip.wrapping_add(LENGTH),
        };
        control.interrupt_shadow = 0;
    }

    fn registers(&mut self) -> &mut GuestRegisters {
        &mut self.registers
    }

    fn rax(&self) -> u64 {
        self.vmcb.state.rax
    }

    fn set_rax(&mut self, value: u64) {
        self.vmcb.state.rax = value;
    }

    fn cr4(&self) -> u64 {
        self.vmcb.state.cr4
    }

    fn is_in_program(&self) -> bool {
        self.vmcb.state.cpl == 3
    }

    fn pass_cpuid(&mut self) -> bool {
        let intercepts = self.vmcb.intercepts() - Intercepts::CPUID;
        self.vmcb.intercept(intercepts);
        true
    }

    fn instruction(&self) -> u64 {
        let state = &self.vmcb.state;
        match self.is_in_64_bit_mode() {
            true => state.rip,
            false => state.cs.base.wrapping_add(state.rip),
        }
    }

    fn is_in_64_bit_mode(&self) -> bool {
        self.vmcb.state.efer & EFER_LMA != 0
    }

    fn page_table(&self) -> u64 {
        self.vmcb.state.cr3
    }

    fn write_efer(&mut self, value: u64) -> bool {
        if value & !(EFER_GUEST | EFER_SVME) != 0 {
            return false;
        }
        self.vmcb.state.efer = value | EFER_SVME;
        true
    }

    fn deliver(&mut self, event: u64) {
        self.vmcb.control.event_injection = event;
    }

    fn inject_invalid_opcode(&mut self) {
        self.vmcb.control.event_injection = INJECT_INVALID_OPCODE;
    }

    fn inject_general_protection(&mut self) {
        self.vmcb.control.event_injection = INJECT_GENERAL_PROTECTION;
    }

    fn inject_nmi(&mut self) {
        if self.in_nmi || self.vmcb.control.event_injection != 0 {
            self.nmi_pending = true;
            self.intercept_return(true);
            return;
        }
        self.in_nmi = true;
        self.intercept_return(true);
        self.vmcb.control.event_injection = INJECT_NMI;
    }

    fn has_event(&self) -> bool {
        self.vmcb.control.event_injection != 0
    }

    fn takes_interrupts(&self) -> bool {
        self.vmcb.state.rflags & RFLAGS_IF != 0 && self.vmcb.control.interrupt_shadow & 1 == 0
    }

    /// None does: they stay pending.
    fn deliver_interrupt(&mut self, _: u8) {}

    /// By a virtual interrupt that exits: one of the processor's goes first. QEMU forgets the virtual one
    /// then (`x86_cpu_exec_interrupt`), so there it is set again when the handler returns.
    fn set_interrupt_window(&mut self, exits: bool) {
        let mut intercepts = self.vmcb.intercepts();
        intercepts.set(Intercepts::VIRTUAL_INTERRUPT, exits);
        intercepts.set(Intercepts::IRET, self.in_nmi || exits && !self.has_next_rip);
        self.vmcb.intercept(intercepts);
        self.vmcb.control.virtual_interrupt = match exits {
            true => VIRTUAL_PENDING | VIRTUAL_ANY_PRIORITY,
            false => 0,
        };
    }

    type Shared = shared::Shared;

    unsafe fn start_shared(area: Area, entry: &Entry) -> Option<Self::Shared> {
        // SAFETY: as promised by the caller.
        unsafe { shared::Shared::start(area, entry) }
    }

    /// The guest is about to execute IRET, by which its NMI handler returns. Linux' handler takes the
    /// NMI that is delivered then as a nested one (arch/x86/entry/entry_64.S).
    fn interrupt_return(&mut self) {
        self.in_nmi = false;
        self.intercept_return(false);
        if self
            .vmcb
            .intercepts()
            .contains(Intercepts::VIRTUAL_INTERRUPT)
        {
            self.vmcb.control.virtual_interrupt = VIRTUAL_PENDING | VIRTUAL_ANY_PRIORITY;
        }
        if core::mem::take(&mut self.nmi_pending) {
            self.inject_nmi();
        }
    }
}
