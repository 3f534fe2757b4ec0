//! Intel's virtualization (VMX): the guest of a core.
//!
//! As long as the core is in VMX operation, an INIT is blocked while the monitor runs, and exits while
//! the guest does. The monitor then leaves VMX operation at once, and the INIT, or the monitor's own if
//! the exit has consumed it, resets the core.
//!
//! NMIs exit from the guest. While the monitor runs, they come by its interrupt descriptors, and have the
//! guest exit as soon as it is entered: so no request that came with one is left until the next exit.
//!
//! The guest has the processor's registers but for CR0.NE and CR4.VMXE, which have to be set in VMX
//! operation and seem to be as the guest wrote them.
//!
//! Source: Intel SDM volume 3, chapters 24 to 28.

pub mod controls;
mod delivery;
pub mod exit;
mod host;
pub mod pause;
pub mod permissions;
mod setup;
mod shared;
pub mod vmcs;

use core::arch::asm;
use core::mem::offset_of;
use core::sync::atomic::Ordering;

use insula_abi::monitor::MONITOR_REGISTERS;
use insula_bare::{PhysAddr, apic, cpu, per_core, trap};

use crate::area::Area;
use crate::exit::Exit;
use crate::guest::{self, Guest as _, GuestRegisters, RESET_RIP, RESET_SELECTOR, Unsupported};
use crate::share::Entry;
use crate::start_state::{EFER_LMA, EFER_LME, StartState};
use controls::{Controls, Pin, Primary};
use exit::{Decoded, Event};
use pause::Paused;
use permissions::MSR_MAP;
use shared::Shared;
use vmcs::{Vmcs, field, segment};

/// CR0: errors of the floating point unit are exceptions.
const CR0_NE: u64 = 1 << 5;
const CR0_PE: u64 = 1 << 0;
const CR0_PG: u64 = 1 << 31;
const CR4_VMXE: u64 = 1 << 13;
/// Bits of EFER that a guest can set: SCE, LME, LMA, NXE.
const EFER_GUEST: u64 = 0xd01;
/// Pointer to a nested page table: cached, of four levels.
const EPT_POINTER: u64 = 6 | 3 << 3;
/// Interruptibility: blocked by STI or MOV SS for one instruction; by an NMI until IRET.
const BLOCKED_ONCE: u64 = 3;
const BLOCKED_BY_NMI: u64 = 1 << 3;
/// Qualification of an exit for memory: IRET had unblocked NMIs.
const UNBLOCKED_NMIS: u64 = 1 << 12;
/// DR6 and pending debug exceptions: a single step.
const DEBUG_STEP: u64 = 1 << 14;
/// DR6: breakpoints; and those bits that a debug exception sets: also access to DR6, step, task switch.
const DR6_BREAKPOINTS: u64 = 0xf;
const DR6_CAUSES: u64 = 0xe00f;
/// DR7: accesses to debug registers raise an exception, which clears this.
const DR7_DETECT: u64 = 1 << 13;
const RFLAGS_TF: u64 = 1 << 8;

/// General registers, for enter.S.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registers {
    /// All but RAX.
    pub general: GuestRegisters,
    /// RAX.
    pub rax: u64,
}

const _: () = assert!(offset_of!(Registers, rax) == 112);

/// The guest of a core.
#[derive(Debug)]
pub struct Guest {
    vmcs: Vmcs,
    registers: Registers,
    controls: Controls,
    nested: PhysAddr,
    area: Area,
    /// It was entered before.
    is_launched: bool,
}

#[cfg(target_os = "none")]
unsafe extern "C" {
    fn vmm_vmx_enter(registers: *mut Registers, launched: bool) -> bool;
    fn vmm_vmx_nmi();
}

/// Ends the blocking of NMIs that an NMI's exit has begun, as only IRET does.
fn unblock_nmis() {
    // SAFETY: returns to the next instruction, with the same stack and flags.
    unsafe {
        asm!(
            "mov {stack}, rsp", "mov {word:e}, ss",
            "push {word}", "push {stack}", "pushfq", "mov {word:e}, cs", "push {word}",
            "lea {word}, [rip + 2f]", "push {word}", "iretq", "2:",
            stack = out(reg) _, word = out(reg) _,
        );
    }
}

/// Has NMIs of the calling core, while the monitor runs, write these controls; 0: has them do nothing.
fn on_nmi(area: Area, controls: u32) {
    area.nmi_controls().store(controls.into(), Ordering::SeqCst);
    #[cfg(target_os = "none")]
    trap::set_nmi_entry(vmm_vmx_nmi as *const () as usize);
    #[cfg(not(target_os = "none"))]
    let _ = trap::set_nmi_entry as fn(usize);
}

/// Lets the INIT that has exited reset the core.
fn reset_core(area: Area) -> ! {
    Guest::leave();
    // Of the processor it is not known whether an exit consumes it.
    apic::send_init(area.apic_id());
    cpu::halt_forever()
}

/// Runs the guest of the current VMCS until its next exit. Returns whether it could not be entered.
///
/// # Safety
/// It does nothing that harms the monitor.
unsafe fn enter(registers: &mut Registers, is_launched: bool) -> bool {
    // SAFETY: as promised by the caller; the registers stay borrowed.
    #[cfg(target_os = "none")]
    return unsafe { vmm_vmx_enter(registers, is_launched) };
    // A host has no guests.
    #[cfg(not(target_os = "none"))]
    {
        let _ = (registers, is_launched);
        false
    }
}

impl Guest {
    /// Forgets what was under way, and starts anew.
    fn restart(&mut self, start: &StartState) {
        self.registers = Registers::default();
        self.vmcs.write_all([
            (field::ENTRY_EVENT, 0),
            (field::GUEST_INTERRUPTIBILITY, 0),
            (field::GUEST_ACTIVITY, 0),
            (field::GUEST_PENDING_DEBUG, 0),
        ]);
        self.vmcs.set_window(Primary::NMI_WINDOW, false);
        setup::start(&mut self.vmcs, &self.controls, start);
        self.flush();
    }

    fn enter(&mut self) {
        // SAFETY: 1. the VMCS and what it names are the guest's. 2. The nested page table keeps it off
        // all other memory.
        let has_failed = unsafe { enter(&mut self.registers, self.is_launched) };
        if has_failed {
            panic!(
                "the guest cannot be entered: error {}",
                self.vmcs.read(field::INSTRUCTION_ERROR)
            );
        }
        self.is_launched = true;
    }

    /// Completes the state that a debug exception sets, and its exit does not (Intel SDM volume 3,
    /// 28.1 "Architectural State before a VM Exit").
    fn complete_debug(&mut self) {
        let causes = self.vmcs.read(field::EXIT_QUALIFICATION) & DR6_CAUSES;
        // SAFETY: the register is the guest's: the monitor has no breakpoints.
        unsafe {
            let mut dr6: u64;
            asm!("mov {}, dr6", out(reg) dr6, options(nomem, nostack, preserves_flags));
            dr6 = dr6 & !DR6_BREAKPOINTS | causes;
            asm!("mov dr6, {}", in(reg) dr6, options(nomem, nostack, preserves_flags));
        }
        let dr7 = self.vmcs.read(field::GUEST_DR7);
        self.vmcs.write(field::GUEST_DR7, dr7 & !DR7_DETECT);
        // An entry wants both to agree (Intel SDM volume 3, 27.3.1.5).
        let is_blocked = self.vmcs.read(field::GUEST_INTERRUPTIBILITY) & BLOCKED_ONCE != 0;
        if is_blocked && self.vmcs.read(field::GUEST_RFLAGS) & RFLAGS_TF != 0 {
            let pending = self.vmcs.read(field::GUEST_PENDING_DEBUG);
            self.vmcs
                .write(field::GUEST_PENDING_DEBUG, pending | DEBUG_STEP);
        }
    }
}

impl guest::Guest for Guest {
    const MAPS_ALL_REGISTERS: bool = true;

    unsafe fn enable(area: Area) -> Result<Self, Unsupported> {
        // SAFETY: the area is the core's, by the caller.
        let vmcs = unsafe { host::enter(area.host_state(), area.control_block())? };
        let mut guest = Self {
            vmcs,
            registers: Registers::default(),
            controls: Controls::choose(&host::capabilities())?,
            nested: PhysAddr(area.header().nested_page_table().0 | EPT_POINTER),
            area,
            is_launched: false,
        };
        setup::prepare(&mut guest.vmcs, &guest.controls, area, guest.nested);
        guest.reset();
        on_nmi(area, guest.controls.pin | Pin::TIMER.bits());
        Ok(guest)
    }

    fn leave() {
        if let Some(per_core) = per_core::installed() {
            // SAFETY: `vcpu::run` has installed the descriptor tables of this core's area.
            on_nmi(unsafe { Area::of_per_core(per_core) }, 0);
        }
        host::leave();
    }

    fn run(&mut self) -> Exit {
        self.enter();
        self.vmcs.keep_undelivered();
        match exit::decode(|field| self.vmcs.read(field), &self.registers) {
            Decoded::Exit(Exit::Init) => reset_core(self.area),
            Decoded::Exit(Exit::Nmi) => {
                unblock_nmis();
                Exit::Nmi
            }
            Decoded::Exit(exit) => exit,
            Decoded::NmiTaken => {
                let _ = self.area.take_nmi();
                self.vmcs
                    .write(field::PIN_CONTROLS, self.controls.pin.into());
                Exit::Nmi
            }
            // It is tried again, and does not exit, since it changes nothing that seems different.
            Decoded::WriteCr0(value) => {
                self.vmcs.write(field::CR0_SHADOW, value & CR0_NE);
                Exit::Handled
            }
        }
    }

    fn reset(&mut self) {
        self.restart(&StartState::reset(RESET_SELECTOR, RESET_RIP));
    }

    fn start_up(&mut self, page: u8) {
        self.restart(&StartState::reset(u16::from(page) << 8, 0));
    }

    fn enter_kernel(&mut self, entry: u64, page_table: u64, argument: u64) {
        self.restart(&StartState::kernel(entry, page_table));
        self.registers.general.rsi = argument;
    }

    type Paused = Paused;

    /// CPUID exits in any case.
    fn disguise(&mut self, tsc_offset: u64) {
        self.vmcs.write(field::TSC_OFFSET, tsc_offset);
        MSR_MAP.disguise();
    }

    fn pause(&mut self) -> Paused {
        let paused = Paused::save(&self.vmcs, self.registers);
        self.reset();
        paused
    }

    fn resume(&mut self, paused: Paused) {
        self.registers = paused.restore(&mut self.vmcs, &self.controls);
        self.flush();
    }

    fn pt_regs(&self) -> [u64; MONITOR_REGISTERS] {
        let selector = |register| field::GUEST_SELECTORS + register;
        let frame = [
            field::GUEST_RIP,
            selector(segment::CS),
            field::GUEST_RFLAGS,
            field::GUEST_RSP,
            selector(segment::SS),
        ];
        let frame = frame.map(|field| self.vmcs.read(field));
        guest::pt_regs(&self.registers.general, self.registers.rax, frame)
    }

    fn flush(&mut self) {
        host::invalidate(host::ONE, self.nested);
    }

    fn skip_instruction(&mut self) {
        self.vmcs.skip_instruction();
    }

    fn registers(&mut self) -> &mut GuestRegisters {
        &mut self.registers.general
    }

    fn rax(&self) -> u64 {
        self.registers.rax
    }

    fn set_rax(&mut self, value: u64) {
        self.registers.rax = value;
    }

    fn cr4(&self) -> u64 {
        self.vmcs.read(field::GUEST_CR4) & !CR4_VMXE
    }

    fn page_table(&self) -> u64 {
        self.vmcs.read(field::GUEST_CR3)
    }

    fn instruction(&self) -> u64 {
        let rip = self.vmcs.read(field::GUEST_RIP);
        match self.is_in_64_bit_mode() {
            true => rip,
            false => rip.wrapping_add(self.vmcs.read(field::GUEST_SEGMENT_BASES + segment::CS)),
        }
    }

    fn is_in_64_bit_mode(&self) -> bool {
        self.vmcs.read(field::GUEST_EFER) & EFER_LMA != 0
    }

    fn is_in_program(&self) -> bool {
        self.vmcs.is_in_program()
    }

    /// CPUID always exits.
    fn pass_cpuid(&mut self) -> bool {
        false
    }

    fn write_efer(&mut self, value: u64) -> bool {
        let old = self.vmcs.read(field::GUEST_EFER);
        let is_paging = self.vmcs.read(field::GUEST_CR0) & CR0_PG != 0;
        let changes_mode = is_paging && (value ^ old) & EFER_LME != 0;
        if value & !EFER_GUEST != 0 || changes_mode {
            return false;
        }
        self.vmcs
            .write(field::GUEST_EFER, value & !EFER_LMA | old & EFER_LMA);
        true
    }

    fn deliver(&mut self, event: u64) {
        let event = Event(event as u32);
        if event.vector() == Event::DEBUG {
            self.complete_debug();
        }
        if event.has_unblocked_nmis() {
            self.vmcs.set_interruptibility(0, BLOCKED_BY_NMI);
        }
        let error = match event.has_error_code() {
            true => self.vmcs.read(field::EXIT_ERROR_CODE),
            false => 0,
        };
        self.vmcs.deliver(event, error);
    }

    fn inject_invalid_opcode(&mut self) {
        self.vmcs.deliver(Event::INVALID_OPCODE, 0);
    }

    fn inject_general_protection(&mut self) {
        self.vmcs.deliver(Event::GENERAL_PROTECTION, 0);
    }

    fn inject_nmi(&mut self) {
        if self.vmcs.has_event() || self.vmcs.read(field::GUEST_INTERRUPTIBILITY) != 0 {
            return self.vmcs.set_window(Primary::NMI_WINDOW, true);
        }
        self.vmcs.deliver(Event::NMI, 0);
    }

    fn interrupt_return(&mut self) {
        self.vmcs.set_window(Primary::NMI_WINDOW, false);
        self.inject_nmi();
    }

    fn has_event(&self) -> bool {
        self.vmcs.has_event()
    }

    fn takes_interrupts(&self) -> bool {
        self.vmcs.takes_interrupts()
    }

    fn deliver_interrupt(&mut self, vector: u8) {
        self.vmcs.deliver(Event::interrupt(vector), 0);
    }

    fn set_interrupt_window(&mut self, exits: bool) {
        self.vmcs.set_window(Primary::INTERRUPT_WINDOW, exits);
    }

    type Shared = Shared;

    unsafe fn start_shared(area: Area, entry: &Entry) -> Option<Shared> {
        // SAFETY: as promised by the caller.
        unsafe { Shared::start(area, entry) }
    }
}
