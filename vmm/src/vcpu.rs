//! A core of the monitor: runs the guest's core, and answers its exits.

mod ports;

use core::fmt::Write as _;
use core::panic::PanicInfo;

use insula_abi::channel::{DOORBELL_APIC_SHIFT, DOORBELL_VALID};
use insula_abi::monitor::{
    MonitorEnd, REQUEST_FLUSH, REQUEST_INIT, REQUEST_NMI, REQUEST_PAUSE, REQUEST_RESUME,
    REQUEST_SHARE, REQUEST_STOP, Violation,
};
use insula_bare::per_core::{self, PerCore};
use insula_bare::{apic, cpu};

use crate::area::Area;
use crate::exit::Exit;
use crate::guest::{Guest, Kind};
use crate::policy::icr::{Decision, Destination, Message};
use crate::policy::{cpuid, icr, xcr0};
use crate::requests::{self, Requests};
use crate::{state, svm, vmx};

mod copy;
mod register;
mod shared;

/// Whether the guest goes on.
type Outcome = Result<(), Ending>;

/// What ends the node: its kind, what was accessed, and the value that was to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ending {
    kind: MonitorEnd,
    subject: u64,
    value: u64,
}

const fn ending(kind: MonitorEnd, subject: u64, value: u64) -> Ending {
    Ending {
        kind,
        subject,
        value,
    }
}

const RESET: Ending = ending(MonitorEnd::RESET, 0, 0);

/// Runs the monitor on the calling core.
///
/// # Safety
/// The base laid the area out, and gave it to this core alone.
pub unsafe fn run(area: u64) -> ! {
    // SAFETY: 1. as promised by the caller. 2. The area is zero where nothing was laid out.
    let (area, per_core) = unsafe {
        let area = Area::at(area);
        (
            area,
            PerCore::in_place(area.per_core(), area.index(), area.apic_id()),
        )
    };
    per_core.install();
    assert!(apic::choose_x2apic(), "the processor has no x2APIC mode");
    apic::enter_mode();
    match Kind::of_core() {
        Kind::Svm => run_guest::<svm::Guest>(area),
        Kind::Vmx => run_guest::<vmx::Guest>(area),
    }
}

fn run_guest<G: Guest>(area: Area) -> ! {
    // SAFETY: the area is this core's.
    match unsafe { G::enable(area) } {
        Ok(guest) => Core {
            area,
            guest,
            changes_seen: 0,
            paused: None,
            config_address: 0,
            is_copy: false,
            waits_for_page: false,
            nmi_is_late: false,
            shared: None,
            shared_open: 0,
        }
        .run(),
        Err(why) => panic!("the processor's virtualization cannot be used: {why:?}"),
    }
}

/// Records that the monitor has failed, which ends the node.
pub fn panicked(info: &PanicInfo<'_>) -> ! {
    if let Some(area) = per_core::installed() {
        // SAFETY: `run` has installed the descriptor tables of this core's area.
        let area = unsafe { Area::of_per_core(area) };
        let header = area.header();
        let _ = match info.location() {
            Some(place) => write!(header.message(), "{} at {place}", info.message()),
            None => write!(header.message(), "{}", info.message()),
        };
        header.end(MonitorEnd::FAILED, Violation::default(), area.index());
    }
    match Kind::of_core() {
        Kind::Svm => svm::Guest::leave(),
        Kind::Vmx => vmx::Guest::leave(),
    }
    cpu::halt_forever()
}

/// A core and its guest.
struct Core<G: Guest> {
    area: Area,
    guest: G,
    /// Count of the nested page table's changes, as of the last flush.
    changes_seen: u64,
    /// What the guest was doing, while it is paused.
    paused: Option<G::Paused>,
    /// The address of PCI configuration space that was written last, on this core: kernels write it and
    /// access the data in one go.
    config_address: u32,
    /// It goes on from another core's state.
    is_copy: bool,
    /// The module was asked for a page.
    waits_for_page: bool,
    /// Requests were carried out before their NMI has come.
    nmi_is_late: bool,
    /// A lightweight kernel that shares the core.
    shared: Option<shared::Sharing<G>>,
    /// Number of its start.
    shared_open: u64,
}

impl<G: Guest> Core<G> {
    fn run(mut self) -> ! {
        if self.area.header().goes_on() {
            self.go_on();
        } else if self.area.index() == 0 {
            let [entry, page_table, argument] = self.area.header().kernel_entry();
            self.guest.enter_kernel(entry, page_table, argument);
            self.area.set_running(true);
        }
        // What was asked for before an NMI could make the guest exit.
        self.serve(Requests::take(self.area.requests()));
        loop {
            self.run_shared();
            let exit = self.guest.run();
            self.area.count_exit(exit.cause());
            if let Err(ending) = self.answer(exit) {
                self.end(ending);
            }
        }
    }

    /// Ends the node: the module resets its cores as soon as it sees the record. Until then this
    /// core's guest halts, and so do the others'.
    fn end(
        &mut self,
        Ending {
            kind,
            subject,
            value,
        }: Ending,
    ) {
        let violation = Violation {
            subject,
            value,
            rip: self.guest.instruction(),
            page_table: self.guest.page_table(),
        };
        self.area.header().end(kind, violation, self.area.index());
        self.area.all().for_each(|core| ask(core, REQUEST_STOP));
        self.stop();
    }

    fn stop(&mut self) {
        self.end_interrupt_window();
        self.guest.reset();
        self.area.set_running(false);
    }

    fn pause(&mut self) {
        self.end_interrupt_window();
        let registers = self.guest.pt_regs();
        let paused = self.guest.pause();
        // SAFETY: it is plain integers, and the core's guest is paused.
        unsafe { state::save(self.area, &paused) }
        self.paused = Some(paused);
        self.area.set_paused(registers);
    }

    fn resume(&mut self) {
        if let Some(paused) = self.paused.take() {
            self.guest.resume(paused);
            self.area.set_resumed();
        }
    }

    fn answer(&mut self, exit: Exit) -> Outcome {
        match exit {
            Exit::Nmi => self.answer_nmi(),
            Exit::Exception(event) => self.guest.deliver(event),
            Exit::Init | Exit::Handled => {}
            Exit::InterruptWindow => self.end_interrupt_window(),
            Exit::InterruptReturn => self.answer_interrupt_return(),
            Exit::Cpuid => self.answer_cpuid(),
            Exit::ReadMsr(register) => self.read_msr(register),
            Exit::WriteMsr { register, value } => return self.write_msr(register, value),
            Exit::ReadPort { port, size } => return self.read_port(port, size),
            Exit::WritePort { port, size, value } => {
                return self.write_port(port, size, value);
            }
            Exit::PortString(port) => return Err(ending(MonitorEnd::PORT, port.into(), 0)),
            // Memory is coherent, for devices, too.
            Exit::FlushCaches => self.guest.skip_instruction(),
            Exit::WriteXcr { register, value } => self.write_xcr(register, value),
            Exit::Memory { .. } if self.has_seen_change() => {}
            Exit::Memory { address, error } if self.is_copy => {
                return self.ask_for_page(address, error);
            }
            Exit::Memory { address, error } => {
                return Err(ending(MonitorEnd::MEMORY, address, error));
            }
            Exit::Shutdown => return Err(RESET),
            // As where there is none: a program's mistake is not its kernel's.
            Exit::Virtualization(_) if self.guest.is_in_program() => {
                self.guest.inject_invalid_opcode();
            }
            Exit::Virtualization(code) | Exit::Other(code) => {
                return Err(ending(MonitorEnd::INSTRUCTION, code, 0));
            }
        }
        Ok(())
    }

    /// Flushes if the nested page table has been changed since the last flush. Then the guest tries its
    /// access again: its core may have remembered less than the table permits now, or have found the address
    /// in a page table of the guest that has been changed, too.
    fn has_seen_change(&mut self) -> bool {
        let is_new = self.area.header().nested_changes() != self.changes_seen;
        if is_new {
            self.flush();
        }
        is_new
    }

    fn flush(&mut self) {
        self.changes_seen = self.area.header().nested_changes();
        self.guest.flush();
    }

    /// Answers an NMI. One that nobody asked for is the base's, or of a counter, for the guest: a core
    /// that has just started has no handler, and gets none. That of a request may come after it was
    /// carried out with another.
    fn answer_nmi(&mut self) {
        let word = self.area.requests();
        let mut requests = Requests::take(word);
        // Another one may follow that was sent before these were taken.
        let is_late = core::mem::replace(&mut self.nmi_is_late, requests.has(REQUEST_SHARE));
        if requests.is_empty() && !is_late && self.has_nmi_handler() {
            requests::add(word, REQUEST_NMI);
            requests = Requests::take(word);
        }
        self.serve(requests);
    }

    /// Whether an NMI has a handler: that of a paused guest gets it later.
    fn has_nmi_handler(&self) -> bool {
        self.paused.is_some() || self.area.is_running() && self.guest.is_in_64_bit_mode()
    }

    /// Carries out what was asked of this core.
    fn serve(&mut self, requests: Requests) {
        if requests.has(REQUEST_FLUSH) {
            self.flush();
            self.area.count_flush();
        }
        if requests.has(REQUEST_SHARE) {
            self.look_after_shared();
        }
        if requests.has(REQUEST_STOP) || self.area.header().has_ended() {
            return self.stop();
        }
        if requests.has(REQUEST_RESUME) {
            self.resume();
        }
        if self.paused.is_some() {
            return requests::keep(self.area.requests(), requests);
        }
        self.serve_guest(requests);
        if requests.has(REQUEST_PAUSE) {
            self.pause();
        }
    }

    /// Carries out what the guest's cores ask of each other.
    fn serve_guest(&mut self, requests: Requests) {
        if requests.has(REQUEST_INIT) {
            self.stop();
        }
        // A core that runs ignores a start-up IPI, one that waits for it ignores NMIs.
        match (self.area.is_running(), requests.startup()) {
            (false, Some(page)) => {
                self.guest.start_up(page);
                self.area.set_running(true);
            }
            (true, _) if requests.has(REQUEST_NMI) && self.has_nmi_handler() => {
                self.guest.inject_nmi();
            }
            _ => {}
        }
    }

    /// A kernel learns of its processor before its first program runs on it. From then on CPUID, which
    /// programs execute often when they start, is the processor's own, if it can be.
    fn answer_cpuid(&mut self) {
        if !self.is_copy && self.guest.is_in_program() && self.guest.pass_cpuid() {
            return;
        }
        let (leaf, subleaf) = (self.guest.rax() as u32, self.guest.registers().rcx as u32);
        let control = cpuid::Control {
            cr4: self.guest.cr4(),
        };
        let answer = cpuid::answer(leaf, subleaf, control, cpu::cpuid(leaf, subleaf));
        let answer = cpuid::with_apic_id(leaf, answer, self.area.guest_apic_id());
        self.guest.set_rax(answer.eax.into());
        let registers = self.guest.registers();
        registers.rbx = answer.ebx.into();
        registers.rcx = answer.ecx.into();
        registers.rdx = answer.edx.into();
        self.guest.skip_instruction();
    }

    /// Sends an interrupt of the guest.
    fn send(&mut self, command: u64) -> Outcome {
        let (area, header) = (self.area, self.area.header());
        let is_own = |apic_id| area.all().any(|core| core.guest_apic_id() == apic_id);
        let is_doorbell = |apic_id: u32, vector: u8| {
            let word =
                DOORBELL_VALID | u64::from(apic_id) << DOORBELL_APIC_SHIFT | u64::from(vector);
            header.doorbells().any(|doorbell| doorbell == word)
        };
        match icr::decide(command, is_own, is_doorbell) {
            Decision::Ignored => {}
            Decision::Dropped => area.count_dropped(),
            Decision::Ring { apic_id, vector } => copy::ring(apic_id, vector),
            Decision::Send(message, destination) => self.send_to_own(message, destination),
            Decision::Violation => return Err(ending(MonitorEnd::INTERRUPT, command, 0)),
        }
        Ok(())
    }

    fn send_to_own(&mut self, message: Message, destination: Destination) {
        let sender = self.area.guest_apic_id();
        let includes = |core: &Area| destination.includes(core.guest_apic_id(), sender);
        for core in self.area.all().filter(includes) {
            let apic_id = core.apic_id();
            match message {
                Message::Fixed(vector) => apic::send_ipi(apic_id, vector),
                Message::Nmi if core.index() == self.area.index() => self.guest.inject_nmi(),
                Message::Nmi => ask(core, REQUEST_NMI),
                Message::Init => ask(core, REQUEST_INIT),
                Message::Startup(page) => {
                    requests::add_startup(core.requests(), page);
                    apic::send_nmi(apic_id);
                }
            }
        }
    }

    /// Enables states of the processor that the kernel saves for its programs.
    fn write_xcr(&mut self, register: u32, value: u64) {
        let supported = cpu::cpuid(0xd, 0);
        let supported = u64::from(supported.edx) << 32 | u64::from(supported.eax);
        if register != 0 || !xcr0::is_valid(value, supported) {
            return self.guest.inject_general_protection();
        }
        // SAFETY: the value is valid, and the monitor uses none of these states.
        unsafe { cpu::write_xcr0(value) }
        self.guest.skip_instruction();
    }
}

/// Asks something of a core, perhaps the calling one.
fn ask(core: Area, request: u64) {
    requests::add(core.requests(), request);
    apic::send_nmi(core.apic_id());
}
