//! A lightweight kernel that shares the core: its guest.
//!
//! It has no nested page table and no permission maps, so it uses memory, registers and ports as on a
//! core of its own. It leaves by VMMCALL. The processor switches all of its registers but the extended
//! ones, TSC_AUX and XCR0: here they are the node's kernel's while that runs.
//!
//! Whether interrupts exit is up to the flag of the monitor, whose own are off anyway by the global flag
//! (AMD APM volume 2, 15.21.1): they stay pending otherwise.

use super::intercepts::shared_intercepts;
use super::take_pending;
use super::vmcb::{
    self, ENDLESS_EXCEPTIONS, FLUSH_ALL, INJECT_ALIGNMENT_CHECK, INJECT_DEBUG,
    INJECT_INVALID_OPCODE, VIRTUAL_ANY_PRIORITY, VIRTUAL_MASKING, VIRTUAL_PENDING, Vmcb, exit_code,
};
#[cfg(target_os = "none")]
use super::vmm_svm_enter;
use crate::area::Area;
use crate::exchange::Exchange;
use crate::guest::GuestRegisters;
use crate::share::{Entry, SharedExit, SharedGuest};
use crate::start_state::{Segment, StartState};

/// Address space identifier: the node's kernel has 1.
const ASID: u32 = 2;
/// Where a virtual interrupt's vector is.
const VECTOR_SHIFT: u32 = 32;
/// VMMCALL; RET.
const LEAVE: [u8; 4] = [0x0f, 0x01, 0xd9, 0xc3];
const VMMCALL_SIZE: u64 = 3;

/// The guest.
#[derive(Debug)]
pub struct Shared {
    vmcb: &'static mut Vmcb,
    /// Physical addresses of its control block, and of that for the monitor's registers.
    blocks: [u64; 2],
    registers: GuestRegisters,
    exchange: Exchange,
}

impl Shared {
    /// Creates it, to start at `entry`. `None`: see [`Exchange::start`].
    ///
    /// # Safety
    /// There is no other for this area, which is the calling core's.
    pub(super) unsafe fn start(area: Area, entry: &Entry) -> Option<Self> {
        // SAFETY: as promised by the caller.
        let exchange = unsafe { Exchange::start(area)? };
        let (block, host) = (area.shared_control_block(), area.host_control_block());
        // SAFETY: 1. these pages are this value's alone. 2. Zeros are a valid control block. 3. The kernel
        // only reads the code.
        let vmcb = unsafe {
            area.shared_code().cast::<[u8; 4]>().write(LEAVE);
            (block.start as *mut u8).write_bytes(0, size_of::<Vmcb>());
            &mut *(block.start as *mut Vmcb)
        };
        let mut shared = Self {
            vmcb,
            blocks: [block.frame.0, host.frame.0],
            registers: GuestRegisters::default(),
            exchange,
        };
        shared.set_up(entry);
        Some(shared)
    }

    fn set_up(&mut self, entry: &Entry) {
        let Vmcb { control, state } = &mut *self.vmcb;
        control.exceptions = ENDLESS_EXCEPTIONS;
        control.asid = ASID;
        control.tlb_control = FLUSH_ALL;
        control.virtual_interrupt = VIRTUAL_MASKING;
        state.start(&StartState::shared(entry.address, entry.page_table));
        // Its first fault ends it.
        [state.gdtr, state.idtr] = [Segment::default(); 2];
        self.vmcb.intercept(shared_intercepts());
        self.registers.rsi = entry.argument;
        self.registers.rdx = entry.page;
    }

    #[cfg(target_os = "none")]
    fn enter(&mut self, interrupted: bool) {
        let [guest, host] = self.blocks;
        // SAFETY: 1. the control block and what it names are the guest's, which is trusted. 2. The
        // registers stay borrowed. 3. With the global flag clear nothing interrupts the monitor.
        unsafe {
            if interrupted {
                core::arch::asm!("sti", options(nomem, nostack));
            }
            vmm_svm_enter(guest, host, &raw mut self.registers);
            core::arch::asm!("cli", options(nomem, nostack));
        }
    }

    /// Runs nothing: a host has no guests.
    #[cfg(not(target_os = "none"))]
    fn enter(&mut self, _: bool) {
        let _ = self.blocks;
    }

    /// Decodes the exit; `None`: the guest goes on.
    fn exit(&mut self) -> Option<SharedExit> {
        let is_kernel = self.vmcb.state.cpl == 0;
        let event = match self.vmcb.control.exit_code {
            exit_code::INTERRUPT => return Some(SharedExit::Interrupt(None)),
            exit_code::NMI => return Some(SharedExit::Nmi),
            exit_code::INIT => return None,
            exit_code::VMMCALL if is_kernel => {
                self.vmcb.state.rip += VMMCALL_SIZE;
                return Some(SharedExit::Left);
            }
            exit_code::DEBUG => INJECT_DEBUG,
            exit_code::ALIGNMENT => INJECT_ALIGNMENT_CHECK,
            // A program's mistake is not its kernel's.
            exit_code::VMRUN..=exit_code::SKINIT | exit_code::INVLPGA if !is_kernel => {
                INJECT_INVALID_OPCODE
            }
            code => return Some(SharedExit::Fault(code)),
        };
        self.vmcb.control.event_injection = event;
        None
    }
}

impl SharedGuest for Shared {
    fn run(&mut self, interrupted: bool) -> SharedExit {
        // SAFETY: the node's kernel has them.
        unsafe { self.exchange.exchange(0) }
        let exit = loop {
            self.enter(interrupted);
            let control = &mut self.vmcb.control;
            control.tlb_control = 0;
            control.event_injection = vmcb::to_deliver(control.exit_interrupt_info);
            if matches!(control.exit_code, exit_code::NMI | exit_code::INIT) {
                take_pending();
            }
            if let Some(exit) = self.exit() {
                break exit;
            }
        };
        // SAFETY: the guest has had them.
        unsafe { self.exchange.exchange(1) }
        exit
    }

    fn interrupt(&mut self, vector: u8) {
        self.vmcb.control.virtual_interrupt = VIRTUAL_MASKING
            | VIRTUAL_ANY_PRIORITY
            | VIRTUAL_PENDING
            | u64::from(vector) << VECTOR_SHIFT;
    }

    fn withdraw_interrupt(&mut self) -> bool {
        let word = &mut self.vmcb.control.virtual_interrupt;
        let is_pending = *word & VIRTUAL_PENDING != 0;
        *word = VIRTUAL_MASKING;
        is_pending
    }
}
