//! The kernel's cores: bringing them up, their loop, their interrupts.

mod balance;
mod count;
mod schedule;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

use insula_abi::channel::{DOORBELL_APIC_SHIFT, DOORBELL_VALID};
use insula_bare::core_area::{self, CoreArea};
use insula_bare::{PhysAddr, apic, cpu, mitigation};
use spin::Once;

use crate::delegation::Area;
use crate::{log, power};

pub(crate) use balance::least_loaded;
pub(crate) use count::{Counter, count, count_call};
pub(crate) use schedule::{Others, answer_questions, end, run, send};

/// The interrupt that means no more than "look again": by it the base feels the pulse
/// (`RESCHEDULE_VECTOR` of Linux).
pub const LOOK_VECTOR: u8 = 0xfd;
/// The interrupt by which the base rings.
pub const DOORBELL_VECTOR: u8 = 0x31;
/// The interrupt by which cores of this kernel wake each other, and have each other forget pages.
const WAKE_VECTOR: u8 = 0x32;

/// Bytes of a core's stack.
pub(crate) const STACK_SIZE: usize = 64 << 10;
/// Most cores of a node.
const CORES_MAX: usize = insula_abi::NODE_CPUS_MAX;

static SET_UP: AtomicBool = AtomicBool::new(false);
static UP: AtomicU32 = AtomicU32::new(0);
static APIC_IDS: Once<Vec<u32>> = Once::new();
static STATES: [State; CORES_MAX] = [const { State::new() }; CORES_MAX];
/// The base has rung, and nobody has looked yet.
static RUNG: AtomicBool = AtomicBool::new(false);
static AREA: Once<Area> = Once::new();

/// What other cores know of a core.
struct State {
    /// Root of the page table that it uses.
    root: AtomicU64,
    /// Root of one that it is to use no more; 0: of none.
    leave: AtomicU64,
    /// How often it was to forget the pages that it remembers, and how often it has.
    forget: AtomicU64,
    forgotten: AtomicU64,
    /// It was interrupted, and has not looked yet what for.
    interrupted: AtomicBool,
}

impl State {
    const fn new() -> Self {
        Self {
            root: AtomicU64::new(0),
            leave: AtomicU64::new(0),
            forget: AtomicU64::new(0),
            forgotten: AtomicU64::new(0),
            interrupted: AtomicBool::new(false),
        }
    }
}

/// The number of the core that calls; 0 before there are several.
#[must_use]
pub fn number() -> u32 {
    match SET_UP.load(Ordering::Relaxed) {
        true => core_area::current().index,
        false => 0,
    }
}

/// How many cores run.
#[must_use]
pub fn up() -> u32 {
    UP.load(Ordering::Acquire)
}

fn state(core: u32) -> &'static State {
    &STATES[core as usize % CORES_MAX]
}

/// Tells the other cores' numbers and APIC ids.
fn for_others(mut tell: impl FnMut(u32, u32)) {
    let own = number();
    for (&apic_id, index) in APIC_IDS.get().into_iter().flatten().zip(0..up()) {
        if index != own {
            tell(index, apic_id);
        }
    }
}

/// Tells the other cores' APIC ids.
pub(crate) fn others(mut tell: impl FnMut(u32)) {
    for_others(|_, apic_id| tell(apic_id));
}

/// Has another core look for what there is to do.
pub(crate) fn wake(core: u32) {
    if core != number() {
        interrupt(core);
    }
}

/// Has a core look for what there is to do, at once: this one as soon as it is in a program.
pub(crate) fn interrupt(core: u32) {
    if let Some(&apic_id) = APIC_IDS.get().and_then(|ids| ids.get(core as usize)) {
        apic::interrupt(apic_id, WAKE_VECTOR);
    }
}

/// Tries until something is there, and lets interrupts in meanwhile: who has it may be waiting for this
/// core to take one.
pub(crate) fn wait_for<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    loop {
        if let Some(found) = attempt() {
            return found;
        }
        cpu::take_interrupts();
        cpu::relax();
    }
}

/// Has all other cores look.
pub(crate) fn wake_all() {
    others(|apic_id| apic::interrupt(apic_id, WAKE_VECTOR));
}

/// Notes which cores there are.
pub(crate) fn prepare(apic_ids: &[u32]) {
    APIC_IDS.call_once(|| apic_ids[..apic_ids.len().min(CORES_MAX)].to_vec());
}

/// Makes the calling core one of the kernel's.
pub(crate) fn set_up(index: u32, apic_id: u32) {
    let area = Box::leak(Box::new(CoreArea::new(index, apic_id)));
    area.adopt();
    SET_UP.store(true, Ordering::Relaxed);
}

/// Counts the calling core among those that run.
pub(crate) fn is_up() {
    UP.fetch_add(1, Ordering::AcqRel);
}

/// From now on the base may begin processes.
pub(crate) fn take_processes(area: Area) {
    AREA.call_once(|| area);
    area.announce(doorbell());
    RUNG.store(true, Ordering::Release);
}

/// The doorbell of the calling core.
fn doorbell() -> u64 {
    let apic_id = u64::from(core_area::current().apic_id);
    DOORBELL_VALID | apic_id << DOORBELL_APIC_SHIFT | u64::from(DOORBELL_VECTOR)
}

/// Has this core use a page table.
#[allow(unsafe_code, reason = "page tables are loaded by address")]
pub(crate) fn use_space(root: PhysAddr) {
    let state = state(number());
    let last = state.root.swap(root.0, Ordering::SeqCst);
    if last == root.0 {
        return;
    }
    // SAFETY: all page tables here have the kernel's half.
    unsafe { cpu::set_root(root.0) }
    // What a core has learned since it left a program's memory is the kernel's own.
    if last != 0 && last != crate::start::kernel_root().0 {
        mitigation::separate_programs();
    }
}

/// Sees to it that no core uses a page table any more, with which nothing will run: it is about to be
/// freed. A core that has not used another since leaves it by an interrupt, whatever it does: it may
/// itself be waiting here, for the one that the caller still uses.
pub(crate) fn leave_space(root: PhysAddr) {
    leave_if_used(root.0);
    for_others(|core, _| {
        let other = state(core);
        let uses = || other.root.load(Ordering::SeqCst) == root.0;
        // Nor is it told later, when the page is another table's root.
        let is_told = || other.leave.load(Ordering::SeqCst) == root.0;
        while uses() || is_told() {
            if uses() {
                other.leave.store(root.0, Ordering::SeqCst);
            }
            wake(core);
            for _ in 0..1000 {
                cpu::take_interrupts();
                cpu::relax();
            }
        }
    });
}

fn leave_if_used(root: u64) {
    if state(number()).root.load(Ordering::Relaxed) == root {
        use_space(crate::start::kernel_root());
    }
}

/// Has all cores that use a page table forget what they remember of it.
pub(crate) fn forget_all(root: PhysAddr) {
    // The table has been changed before, and is seen to be by every core that is not found to use it
    // here: one that begins to stores its root, as an atomic exchange, before it loads CR3 and walks.
    fence(Ordering::SeqCst);
    let own = state(number());
    if own.root.load(Ordering::Relaxed) == root.0 {
        reload(root.0);
    }
    for_others(|core, apic_id| {
        let other = state(core);
        if other.root.load(Ordering::SeqCst) != root.0 {
            return;
        }
        let wanted = other.forget.fetch_add(1, Ordering::SeqCst) + 1;
        apic::interrupt(apic_id, WAKE_VECTOR);
        while other.forgotten.load(Ordering::SeqCst) < wanted {
            cpu::take_interrupts();
            cpu::relax();
        }
    });
}

#[allow(unsafe_code, reason = "page tables are loaded by address")]
fn reload(root: u64) {
    // SAFETY: it is the one in use.
    unsafe { cpu::set_root(root) }
}

/// Does what another core wants this one to.
fn woken() {
    let own = state(number());
    let left = own.leave.swap(0, Ordering::SeqCst);
    if left != 0 {
        leave_if_used(left);
    }
    let wanted = own.forget.load(Ordering::SeqCst);
    if own.forgotten.load(Ordering::Relaxed) < wanted {
        reload(cpu::root());
        own.forgotten.store(wanted, Ordering::SeqCst);
    }
}

/// Whether the calling core was interrupted, and has not looked yet what for.
fn is_interrupted() -> bool {
    state(number()).interrupted.load(Ordering::Relaxed)
}

/// The calling core is about to look.
fn heed_interrupts() {
    state(number()).interrupted.store(false, Ordering::Relaxed);
}

/// Deals with an interrupt, which came while the kernel waited for one, or to a program. Whom it is
/// about is looked for before the core enters a program again.
pub(crate) fn interrupted(vector: u8) {
    if vector == apic::SPURIOUS_VECTOR {
        return;
    }
    apic::end_of_interrupt();
    state(number()).interrupted.store(true, Ordering::Relaxed);
    match vector {
        LOOK_VECTOR if number() == 0 => log::beat(),
        DOORBELL_VECTOR => RUNG.store(true, Ordering::Release),
        WAKE_VECTOR => woken(),
        power::BUTTON_VECTOR => power::off("the power button was pressed"),
        _ => {}
    }
}
