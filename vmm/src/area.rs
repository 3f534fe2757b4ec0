//! The memory of the monitor that the module shares: the header, and each core's area.
//!
//! A core's area, `MONITOR_CORE_SIZE` bytes:
//!
//! ```text
//! struct insula_monitor_core | control block | host state | host's control block | PerCore
//!                            4 KiB           8            12                     16
//! | state of a paused core | of a kernel that shares the core: page, code, control block,
//! 64                       88
//! extended states, the node's kernel's and its own | stack
//!                                                 108     128
//! ```

use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use insula_abi::monitor::{
    MONITOR_CORE_SIZE, MONITOR_MESSAGE, MONITOR_REGISTERS, MONITOR_SHARED, MONITOR_SHARED_CODE,
    MONITOR_STATE, MONITOR_STATE_SIZE, Monitor, MonitorCore, MonitorEnd, MonitorExit, Violation,
};
use insula_bare::PhysAddr;
use insula_bare::per_core::PerCore;

use crate::function::Function;
use crate::share::Words;

/// Lower vectors are exceptions.
const FIRST_VECTOR: u8 = 32;
/// Offsets of the words for NMIs while the monitor runs. vmx/enter.S has them.
const NMI_TAKEN: u64 = 0xff0;
const NMI_CONTROLS: u64 = 0xff8;
/// Offset of the guest's control block (VMCB or VMCS).
const CONTROL_BLOCK: u64 = 0x1000;
/// Offset of the page in which the processor saves the monitor's state, or its VMXON region.
const HOST_STATE: u64 = 0x2000;
/// Offset of a control block for the monitor's own registers.
const HOST_CONTROL_BLOCK: u64 = 0x3000;
/// Offset of the core's descriptor tables.
const PER_CORE: u64 = 0x4000;
/// Offset of the control block of a kernel that shares the core.
const SHARED_CONTROL_BLOCK: u64 = 0x18000;
/// Offset of the node's kernel's extended state meanwhile, a page, and of that kernel's.
const SHARED_EXTENDED: u64 = 0x19000;
/// Offset of the stack's lowest byte.
const STACK: u64 = 0x1b000;

const _: () = {
    assert!(PER_CORE + size_of::<PerCore>() as u64 <= MONITOR_STATE);
    assert!(size_of::<MonitorCore>() as u64 <= NMI_TAKEN);
    assert!(NMI_TAKEN as i64 - PER_CORE as i64 == -0x3010);
    assert!(NMI_CONTROLS as i64 - PER_CORE as i64 == -0x3008);
    assert!(MONITOR_STATE + MONITOR_STATE_SIZE <= MONITOR_SHARED);
    assert!(MONITOR_SHARED < MONITOR_SHARED_CODE);
    assert!(STACK + 0x4000 < MONITOR_CORE_SIZE);
};

/// A core's area.
#[derive(Clone, Copy, Debug)]
pub struct Area {
    /// Its virtual address.
    start: u64,
}

/// A page of an area.
#[derive(Clone, Copy, Debug)]
pub struct AreaPage {
    /// Its virtual address.
    pub start: u64,
    /// Its physical address.
    pub frame: PhysAddr,
}

impl Area {
    /// The area at a virtual address.
    ///
    /// # Safety
    /// The base laid it out there, with its header, and both stay.
    #[must_use]
    pub unsafe fn at(start: u64) -> Self {
        Self { start }
    }

    /// The area that holds a core's descriptor tables.
    ///
    /// # Safety
    /// They are those of an area.
    #[must_use]
    pub unsafe fn of_per_core(per_core: *const PerCore) -> Self {
        Self {
            start: per_core as u64 - PER_CORE,
        }
    }

    fn word64(&self, offset: usize) -> &'static AtomicU64 {
        // SAFETY: the area stays, and its words are only accessed as atomics.
        unsafe { AtomicU64::from_ptr((self.start as usize + offset) as *mut u64) }
    }

    fn word32(&self, offset: usize) -> &'static AtomicU32 {
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr((self.start as usize + offset) as *mut u32) }
    }

    /// The header of the monitor's memory.
    #[must_use]
    pub fn header(&self) -> Header {
        Header {
            start: self
                .word64(offset_of!(MonitorCore, header))
                .load(Ordering::Relaxed),
        }
    }

    /// Index of the core in the node.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.word32(offset_of!(MonitorCore, index))
            .load(Ordering::Relaxed)
    }

    /// Physical id of its local APIC.
    #[must_use]
    pub fn apic_id(&self) -> u32 {
        self.word32(offset_of!(MonitorCore, apic_id))
            .load(Ordering::Relaxed)
    }

    /// Id by which the guest's kernel knows its local APIC.
    #[must_use]
    pub fn guest_apic_id(&self) -> u32 {
        self.word64(offset_of!(MonitorCore, guest_apic_id))
            .load(Ordering::Relaxed) as u32
    }

    /// The word by which the core asks the module for a page.
    #[must_use]
    pub fn page_request(&self) -> &'static AtomicU64 {
        self.word64(offset_of!(MonitorCore, page_request))
    }

    /// The state that it leaves when it is paused, [`MONITOR_STATE_SIZE`] bytes.
    #[must_use]
    pub fn state(&self) -> *mut u8 {
        (self.start + MONITOR_STATE) as *mut u8
    }

    /// The words of a kernel that shares the core.
    #[must_use]
    pub fn share(&self) -> Words {
        // SAFETY: the base laid the area out, and it stays.
        unsafe { Words::at(self.start, self.start + MONITOR_SHARED) }
    }

    /// The page with the code by which that kernel leaves.
    #[must_use]
    pub fn shared_code(&self) -> *mut u8 {
        (self.start + MONITOR_SHARED_CODE) as *mut u8
    }

    /// That kernel's control block.
    #[must_use]
    pub fn shared_control_block(&self) -> AreaPage {
        self.page(SHARED_CONTROL_BLOCK)
    }

    /// A page each for the extended states of the node's kernel, while that one runs, and the other way
    /// round.
    #[must_use]
    pub fn shared_extended(&self) -> [*mut u8; 2] {
        [0, 0x1000].map(|offset| (self.start + SHARED_EXTENDED + offset) as *mut u8)
    }

    /// The word with requests to the core.
    #[must_use]
    pub fn requests(&self) -> &'static AtomicU64 {
        self.word64(offset_of!(MonitorCore, requests))
    }

    /// Records whether the guest's core runs. Either the module sees that it does, and waits for it after
    /// it has changed the nested page table, or the guest sees the change.
    pub fn set_running(&self, running: bool) {
        self.word64(offset_of!(MonitorCore, running))
            .swap(running.into(), Ordering::SeqCst);
    }

    /// Whether the node has this core now.
    fn is_owned(&self) -> bool {
        self.word64(offset_of!(MonitorCore, owned))
            .load(Ordering::Relaxed)
            != 0
    }

    /// Whether the guest's core runs.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.word64(offset_of!(MonitorCore, running))
            .load(Ordering::Relaxed)
            != 0
    }

    /// Records that the guest is paused, with these registers.
    pub fn set_paused(&self, registers: [u64; MONITOR_REGISTERS]) {
        let offsets = (offset_of!(MonitorCore, registers)..).step_by(8);
        for (offset, register) in offsets.zip(registers) {
            self.word64(offset).store(register, Ordering::Relaxed);
        }
        self.word64(offset_of!(MonitorCore, paused))
            .store(1, Ordering::Release);
    }

    /// Records that the guest is not paused.
    pub fn set_resumed(&self) {
        self.word64(offset_of!(MonitorCore, paused))
            .store(0, Ordering::Release);
    }

    /// What an NMI writes to the guest's controls while the monitor runs (VMX).
    #[must_use]
    pub fn nmi_controls(&self) -> &'static AtomicU64 {
        self.word64(NMI_CONTROLS as usize)
    }

    /// Whether one has since this was last read (VMX).
    #[must_use]
    pub fn take_nmi(&self) -> bool {
        self.word64(NMI_TAKEN as usize).swap(0, Ordering::SeqCst) != 0
    }

    /// Counts a flush of the nested page table that was carried out.
    pub fn count_flush(&self) {
        self.word64(offset_of!(MonitorCore, flushes))
            .fetch_add(1, Ordering::Release);
    }

    /// Counts an exit.
    pub fn count_exit(&self, cause: MonitorExit) {
        self.count(offset_of!(MonitorCore, exits) + 8 * cause.0 as usize);
    }

    /// Counts an interrupt to another kernel that was dropped.
    pub fn count_dropped(&self) {
        self.count(offset_of!(MonitorCore, dropped));
    }

    /// Adds one to a word that only this core writes.
    fn count(&self, offset: usize) {
        let word = self.word64(offset);
        word.store(word.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// The core's descriptor tables, not initialized.
    #[must_use]
    pub fn per_core(&self) -> *mut PerCore {
        (self.start + PER_CORE) as *mut PerCore
    }

    /// The guest's control block.
    #[must_use]
    pub fn control_block(&self) -> AreaPage {
        self.page(CONTROL_BLOCK)
    }

    /// The page in which the processor saves the monitor's state, or its VMXON region.
    #[must_use]
    pub fn host_state(&self) -> AreaPage {
        self.page(HOST_STATE)
    }

    /// The control block for the monitor's own registers.
    #[must_use]
    pub fn host_control_block(&self) -> AreaPage {
        self.page(HOST_CONTROL_BLOCK)
    }

    fn page(&self, offset: u64) -> AreaPage {
        let start = self.start + offset;
        AreaPage {
            start,
            frame: self.physical(start),
        }
    }

    /// The physical address of a virtual one in the monitor's memory, which is contiguous.
    #[must_use]
    pub fn physical(&self, address: u64) -> PhysAddr {
        let own = self.header().cores() + u64::from(self.index()) * MONITOR_CORE_SIZE;
        PhysAddr(own.wrapping_add(address.wrapping_sub(self.start)))
    }

    /// The node's PCI functions.
    pub fn functions(&self) -> impl Iterator<Item = Function> + use<> {
        let header = self.header();
        let first = header.read(offset_of!(Monitor, functions));
        let count = header.word32(offset_of!(Monitor, functions_count));
        let start = first.wrapping_sub(self.physical(header.start).0);
        // SAFETY: the base laid them out in the monitor's memory, which is contiguous and stays.
        unsafe {
            Function::all(
                start.wrapping_add(header.start),
                count.load(Ordering::Relaxed),
            )
        }
    }

    /// The areas of all cores that the node has now.
    pub fn all(&self) -> impl Iterator<Item = Area> + use<> {
        let first = self.start - u64::from(self.index()) * MONITOR_CORE_SIZE;
        let count = u64::from(self.header().cores_count());
        let areas = (0..count).map(move |number| Area {
            start: first + number * MONITOR_CORE_SIZE,
        });
        areas.filter(Area::is_owned)
    }
}

/// The header of the monitor's memory.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    start: u64,
}

impl Header {
    fn word64(&self, offset: usize) -> &'static AtomicU64 {
        // SAFETY: the header stays, and its words are only accessed as atomics.
        unsafe { AtomicU64::from_ptr((self.start as usize + offset) as *mut u64) }
    }

    fn word32(&self, offset: usize) -> &'static AtomicU32 {
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr((self.start as usize + offset) as *mut u32) }
    }

    fn read(&self, offset: usize) -> u64 {
        self.word64(offset).load(Ordering::Relaxed)
    }

    fn cores(&self) -> u64 {
        self.read(offset_of!(Monitor, cores))
    }

    fn cores_count(&self) -> u32 {
        self.word32(offset_of!(Monitor, cores_count))
            .load(Ordering::Relaxed)
    }

    /// Root of the nested page table.
    #[must_use]
    pub fn nested_page_table(&self) -> PhysAddr {
        PhysAddr(self.read(offset_of!(Monitor, nested_page_table)))
    }

    /// Number of times that the module has begun to change entries of it that cores may remember.
    #[must_use]
    pub fn nested_changes(&self) -> u64 {
        self.word64(offset_of!(Monitor, nested_changes))
            .load(Ordering::Acquire)
    }

    /// First instruction of the node's kernel, its CR3 and its RSI.
    #[must_use]
    pub fn kernel_entry(&self) -> [u64; 3] {
        [
            offset_of!(Monitor, entry),
            offset_of!(Monitor, page_table),
            offset_of!(Monitor, argument),
        ]
        .map(|offset| self.read(offset))
    }

    /// The doorbells that the node may ring, as `INSULA_DOORBELL_*`.
    pub fn doorbells(&self) -> impl Iterator<Item = u64> + use<> {
        let header = *self;
        (0..insula_abi::monitor::MONITOR_DOORBELLS)
            .map(move |number| header.read(offset_of!(Monitor, doorbells) + 8 * number))
    }

    /// The doorbell of requests for pages; 0 if the node is no copy.
    #[must_use]
    pub fn page_doorbell(&self) -> u64 {
        self.read(offset_of!(Monitor, page_doorbell))
    }

    /// Whether cores go on from the states in their areas.
    #[must_use]
    pub fn goes_on(&self) -> bool {
        self.read(offset_of!(Monitor, goes_on)) != 0
    }

    /// Added to the time stamp counter of such cores.
    #[must_use]
    pub fn tsc_offset(&self) -> u64 {
        self.read(offset_of!(Monitor, tsc_offset))
    }

    /// Vector of the interrupt that the first core gets as it goes on, if any.
    #[must_use]
    pub fn interrupt(&self) -> Option<u8> {
        let vector = u8::try_from(self.read(offset_of!(Monitor, interrupt)));
        vector.ok().filter(|&vector| vector >= FIRST_VECTOR)
    }

    /// Whether the node has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.word32(offset_of!(Monitor, ended))
            .load(Ordering::Acquire)
            != MonitorEnd::RUNS.0
    }

    /// Records what ended the node. Only the first record counts, and is written whole before the
    /// module sees it: `ended_core` decides between cores.
    pub fn end(&self, end: MonitorEnd, violation: Violation, core: u32) {
        let first = self.word32(offset_of!(Monitor, ended_core));
        if first
            .compare_exchange(0, core + 1, Ordering::AcqRel, Ordering::Relaxed)
            .is_err()
        {
            return;
        }
        let at = offset_of!(Monitor, violation);
        for (offset, value) in [
            (offset_of!(Violation, subject), violation.subject),
            (offset_of!(Violation, value), violation.value),
            (offset_of!(Violation, rip), violation.rip),
            (offset_of!(Violation, page_table), violation.page_table),
        ] {
            self.word64(at + offset).store(value, Ordering::Relaxed);
        }
        self.word32(offset_of!(Monitor, ended))
            .store(end.0, Ordering::Release);
    }

    /// The buffer for a message.
    #[must_use]
    pub fn message(&self) -> Message {
        Message {
            start: self.start + offset_of!(Monitor, message) as u64,
            used: 0,
        }
    }
}

/// Writes a message into the header, as much as fits.
#[derive(Debug)]
pub struct Message {
    start: u64,
    used: usize,
}

impl core::fmt::Write for Message {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        for &byte in text.as_bytes() {
            // The last byte stays zero.
            if self.used + 1 < MONITOR_MESSAGE {
                // SAFETY: within the message's bytes, which nobody reads before `ended` is set.
                unsafe { ((self.start as usize + self.used) as *mut u8).write_volatile(byte) }
                self.used += 1;
            }
        }
        Ok(())
    }
}
