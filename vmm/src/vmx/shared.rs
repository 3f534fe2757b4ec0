//! A lightweight kernel that shares the core: its guest.
//!
//! It has a VMCS of its own, without nested page table, so it uses memory, registers and ports as on a core of its
//! own. It leaves by VMCALL. CPUID and XSETBV exit in any case, and are executed for it. What neither entries
//! nor exits switch is exchanged here.
//!
//! Interrupts of the node's kernel exit, if that takes them now: an exit takes one from the local APIC, and the
//! node's kernel gets its vector. Else the task priority keeps them pending; one for which the local APIC had
//! called the processor before is then taken as a spurious one, and stays pending, too.
//!
//! An NMI while the monitor runs concerns whichever guest is entered next. So after each change of the
//! VMCS it is looked whether one has come before.

use core::arch::asm;

use insula_bare::cpu::{self, read_msr, write_msr};

use super::controls::{Controls, Pin, Primary};
use super::exit::{self, Decoded, Event, reason};
use super::pause::MSRS;
use super::vmcs::{Vmcs, field};
use super::{CR0_NE, Registers, enter, host, reset_core, setup, unblock_nmis};
use crate::area::{Area, AreaPage};
use crate::exchange::Exchange;
use crate::exit::Exit;
use crate::extended;
use crate::policy::xcr0;
use crate::share::{Entry, SharedExit, SharedGuest};
use crate::start_state::StartState;

/// VMCALL; RET.
const LEAVE: [u8; 4] = [0x0f, 0x01, 0xc1, 0xc3];
/// Task priority: no interrupt is delivered.
const NO_INTERRUPTS: u64 = 15;
const PAGE_SIZE: usize = 0x1000;

/// The guest.
#[derive(Debug)]
pub struct Shared {
    area: Area,
    /// Its VMCS.
    region: AreaPage,
    controls: Controls,
    registers: Registers,
    is_launched: bool,
    /// Vector of the interrupt that it is to take.
    vector: Option<u8>,
    exchange: Exchange,
    /// Of the kernel that does not have the core: [`MSRS`], CR2 and DR6.
    msrs: [u64; MSRS.len()],
    cr2: u64,
    dr6: u64,
}

impl Shared {
    /// Creates it, to start at `entry`. `None`: see [`Exchange::start`]; or the processor lacks what only
    /// very old ones do.
    ///
    /// # Safety
    /// There is no other for this area, which is the calling core's.
    pub(super) unsafe fn start(area: Area, entry: &Entry) -> Option<Self> {
        let controls = Controls::choose(&host::capabilities()).ok()?.shared();
        // SAFETY: as promised by the caller.
        let exchange = unsafe { Exchange::start(area)? };
        if !host::invalidate_tagged() {
            return None;
        }
        let (region, zeros) = (area.shared_control_block(), area.host_control_block());
        let mut shared = Self {
            area,
            region,
            controls,
            registers: Registers::default(),
            is_launched: false,
            vector: None,
            exchange,
            msrs: [0; MSRS.len()],
            cr2: 0,
            dr6: crate::start_state::DR6,
        };
        shared.registers.general.rsi = entry.argument;
        shared.registers.general.rdx = entry.page;
        // SAFETY: 1. these pages are this value's alone. 2. The kernel only reads the code. 3. The core
        // is in VMX operation, and goes back to the node's VMCS below.
        let mut vmcs = unsafe {
            (zeros.start as *mut u8).write_bytes(0, PAGE_SIZE);
            area.shared_code().cast::<[u8; 4]>().write(LEAVE);
            // It may have been an earlier guest's.
            Vmcs::clear(region.frame);
            host::begin_region(region);
            Vmcs::load(region.frame)
        };
        setup::prepare_shared(&mut vmcs, &controls, zeros.frame);
        let start = StartState::shared(entry.address, entry.page_table);
        setup::start(&mut vmcs, &controls, &start);
        // Its first fault ends it.
        vmcs.write_all([(field::GUEST_GDTR_LIMIT, 0), (field::GUEST_IDTR_LIMIT, 0)]);
        shared.go_back();
        Some(shared)
    }

    /// Goes back to the node's VMCS. If an NMI has come that was not answered, its guest exits at once.
    fn go_back(&self) {
        // SAFETY: the node's guest does not use its own value meanwhile.
        let mut vmcs = unsafe { Vmcs::reload(self.area.control_block().frame) };
        if self.area.take_nmi() {
            let pin = self.controls.pin & !Pin::INTERRUPT.bits() | Pin::TIMER.bits();
            vmcs.write(field::PIN_CONTROLS, pin.into());
        }
    }

    /// Exchanges the registers that the processor does not: from one kernel's to the other's.
    ///
    /// # Safety
    /// `from` is the number of the kernel that has them.
    unsafe fn exchange(&mut self, from: usize) {
        for (register, kept) in MSRS.into_iter().zip(&mut self.msrs) {
            // SAFETY: each processor with 64-bit mode has them, and the value was in use, or is 0.
            unsafe {
                let value = read_msr(register);
                write_msr(register, *kept);
                *kept = value;
            }
        }
        let (cr2, dr6): (u64, u64);
        // SAFETY: the monitor takes no page faults, and has no breakpoints; the values were in use, or are
        // those of a start. The rest as promised by the caller.
        unsafe {
            asm!("mov {}, cr2", "mov {}, dr6", out(reg) cr2, out(reg) dr6,
                 options(nomem, nostack, preserves_flags));
            asm!("mov cr2, {}", "mov dr6, {}", in(reg) self.cr2, in(reg) self.dr6,
                 options(nomem, nostack, preserves_flags));
            self.exchange.exchange(from);
        }
        (self.cr2, self.dr6) = (cr2, dr6);
    }

    /// Enters it until there is something for the monitor. An NMI that has come since the node's guest was
    /// left, or comes before an entry, is answered first.
    fn run_until_exit(&mut self, vmcs: &mut Vmcs, interrupted: bool) -> SharedExit {
        vmcs.write(field::PIN_CONTROLS, self.controls.pin.into());
        if self.area.take_nmi() {
            return SharedExit::Nmi;
        }
        loop {
            self.offer_interrupt(vmcs);
            // SAFETY: the VMCS and what it names are the guest's, which is trusted.
            let has_failed = unsafe { enter(&mut self.registers, self.is_launched) };
            if has_failed {
                return SharedExit::Fault(vmcs.read(field::INSTRUCTION_ERROR));
            }
            self.is_launched = true;
            vmcs.keep_undelivered();
            match self.answer(vmcs) {
                None => {}
                Some(SharedExit::Interrupt(_)) if !interrupted => {}
                Some(exit) => return exit,
            }
        }
    }

    /// Has it take its interrupt, or exit as soon as it can.
    fn offer_interrupt(&mut self, vmcs: &mut Vmcs) {
        let taken = self.vector.take_if(|_| vmcs.takes_interrupts());
        if let Some(vector) = taken {
            vmcs.deliver(Event::interrupt(vector), 0);
        }
        vmcs.set_window(Primary::INTERRUPT_WINDOW, self.vector.is_some());
    }

    /// Answers an exit; `None`: the guest goes on.
    fn answer(&mut self, vmcs: &mut Vmcs) -> Option<SharedExit> {
        let exit = match exit::decode(|field| vmcs.read(field), &self.registers) {
            Decoded::Exit(exit) => exit,
            Decoded::NmiTaken => {
                let _ = self.area.take_nmi();
                return Some(SharedExit::Nmi);
            }
            Decoded::WriteCr0(value) => {
                vmcs.write(field::CR0_SHADOW, value & CR0_NE);
                return None;
            }
        };
        match exit {
            Exit::Init => reset_core(self.area),
            Exit::Nmi => {
                unblock_nmis();
                return Some(SharedExit::Nmi);
            }
            Exit::InterruptWindow => {}
            Exit::Cpuid => self.answer_cpuid(vmcs),
            Exit::WriteXcr { register, value } if is_valid(register, value) => {
                // SAFETY: the value is valid, and the monitor uses none of these states.
                unsafe { cpu::write_xcr0(value) }
                vmcs.skip_instruction();
            }
            // A program's mistake is not its kernel's.
            Exit::Virtualization(_) if vmcs.is_in_program() => {
                vmcs.deliver(Event::INVALID_OPCODE, 0);
            }
            Exit::Virtualization(code) if code == reason::VMCALL.into() => {
                vmcs.skip_instruction();
                return Some(SharedExit::Left);
            }
            Exit::Other(code) if code == reason::INTERRUPT.into() => {
                let vector = Event(vmcs.read(field::EXIT_EVENT) as u32).vector() as u8;
                return Some(SharedExit::Interrupt(Some(vector)));
            }
            _ => return Some(SharedExit::Fault(vmcs.read(field::EXIT_REASON))),
        }
        None
    }

    fn answer_cpuid(&mut self, vmcs: &mut Vmcs) {
        let general = &mut self.registers.general;
        let answer = cpu::cpuid(self.registers.rax as u32, general.rcx as u32);
        self.registers.rax = answer.eax.into();
        general.rbx = answer.ebx.into();
        general.rcx = answer.ecx.into();
        general.rdx = answer.edx.into();
        vmcs.skip_instruction();
    }
}

/// Whether a value can be written to that extended control register.
fn is_valid(register: u32, value: u64) -> bool {
    register == 0 && xcr0::is_valid(value, extended::program_states())
}

/// Sets the task priority. Returns what it was.
fn set_task_priority(priority: u64) -> u64 {
    let before;
    // SAFETY: the monitor takes no interrupts.
    unsafe {
        asm!("mov {}, cr8", "mov cr8, {}", out(reg) before, in(reg) priority,
             options(nomem, nostack, preserves_flags));
    }
    before
}

impl SharedGuest for Shared {
    fn run(&mut self, interrupted: bool) -> SharedExit {
        // SAFETY: it was loaded, and the node's guest does not use its own value meanwhile.
        let mut vmcs = unsafe { Vmcs::reload(self.region.frame) };
        let priority = (!interrupted).then(|| set_task_priority(NO_INTERRUPTS));
        // SAFETY: the node's kernel has them.
        unsafe { self.exchange(0) }
        let exit = self.run_until_exit(&mut vmcs, interrupted);
        // SAFETY: the guest has had them.
        unsafe { self.exchange(1) }
        if let Some(priority) = priority {
            set_task_priority(priority);
        }
        self.go_back();
        exit
    }

    fn interrupt(&mut self, vector: u8) {
        self.vector = Some(vector);
    }

    fn withdraw_interrupt(&mut self) -> bool {
        self.vector.take().is_some()
    }
}
