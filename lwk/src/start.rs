//! From the first instruction in Rust to the loops of all cores.

#![allow(
    unsafe_code,
    reason = "memory is found by tables, page tables are loaded"
)]

use alloc::vec;

use insula_bare::memory::{self, PhysAddr};
use insula_bare::paging::PageTable;
use insula_bare::start::{LOW_PAGES, Launch, Launchpad};
use insula_bare::{Entry, FRAME_SIZE, apic, core_area, cpu, trap};

use crate::delegation::Area;
use crate::memory::Pool;
use crate::world::{Reader, Stretch, World};
use crate::{clock, cores, info, power, warning};

/// Below lies the memory in which cores are started.
const LOW_END: u64 = 1 << 20;

/// The kernel's own page table.
static KERNEL: spin::Mutex<Option<PageTable>> = spin::Mutex::new(None);

/// The first core, on its early stack and page table.
pub fn first_core(boot_params: u64, image: u64) -> ! {
    clock::begin();
    crate::memory::begin_heap();
    let (boot_params, image) = match entry(boot_params, image) {
        Entry::Started { boot_params, image } => (boot_params, image),
        Entry::Called { .. } => unreachable!("this kernel is only ever started"),
    };
    let image = Stretch {
        start: image.0,
        size: crate::memory::image_size(),
    };
    let world = read_world(boot_params, image);
    clock::set_frequency(world.command_line.tsc_khz().unwrap_or(1_000_000));
    info!("{}", crate::log::banner());
    info!("command line: {}", world.command_line.text);
    power::prepare(&world);
    cores::prepare(&world.cores);
    cores::set_up(0, world.cores[0]);
    trap::set_interrupt_handler(cores::interrupted);
    add_memory(&world, image);
    let mut kernel = own_table(&world, image);
    apic::enable();
    apic::calibrate_timer(clock::tsc_khz());
    cores::is_up();
    start_others(&world, &mut kernel);
    *KERNEL.lock() = Some(kernel);
    info!(
        "{} of {} cores run, {} KiB of memory are free",
        cores::up(),
        world.cores.len(),
        crate::memory::free_bytes() >> 10
    );
    assert!(
        !world.command_line.has("crash"),
        "asked for by the command line"
    );
    if world.command_line.has("once") {
        crate::process::end_with_programs();
    }
    match world.shared.and_then(Area::find) {
        Some(area) => cores::take_processes(area),
        None => warning!("there is no delegation area: no program can run"),
    }
    power::listen();
    cores::run()
}

/// Does something with the kernel's page table, whose half all others have.
///
/// # Panics
/// Before all cores have been started.
pub(crate) fn with_kernel_table<T>(deed: impl FnOnce(&PageTable) -> T) -> T {
    deed(KERNEL.lock().as_ref().expect("the kernel has a page table"))
}

/// The root of the kernel's page table.
pub(crate) fn kernel_root() -> PhysAddr {
    with_kernel_table(PageTable::root)
}

/// By which of its two ways the kernel was entered.
fn entry(boot_params: u64, image: u64) -> Entry {
    Entry::Started {
        boot_params: PhysAddr(boot_params),
        image: PhysAddr(image),
    }
}

fn read_world(boot_params: PhysAddr, image: Stretch) -> World {
    // The loader's table maps just the node's memory, so what lies elsewhere would be a fault: a
    // panic with its address, which is as good an answer as any at this point.
    let copy = |address: u64, to: &mut [u8]| {
        if address.saturating_add(to.len() as u64) > memory::DIRECT_MAP_SIZE {
            return false;
        }
        // SAFETY: nobody writes to what the loader has left.
        unsafe { memory::read(PhysAddr(address), to) };
        true
    };
    World::read(&Reader::new(&copy), boot_params.0).unwrap_or_else(|error| {
        panic!(
            "the image at {:#x} finds no machine described: {error:?}",
            image.start
        )
    })
}

fn add_memory(world: &World, image: Stretch) {
    for &stretch in world
        .memory
        .iter()
        .filter(|stretch| stretch.start >= LOW_END)
    {
        // SAFETY: the map says that it is free, and of what is free only the image is in use.
        unsafe { crate::memory::add(stretch, image) };
    }
}

/// Leaves the loader's page table for one that maps no more than the kernel needs.
fn own_table(world: &World, image: Stretch) -> PageTable {
    let mut kernel = crate::memory::build(world, PhysAddr(image.start)).expect("a page table");
    let greatest = world.cores.iter().max().copied().unwrap_or_default();
    apic::prepare(greatest, &mut kernel, &mut Pool).expect("a window to the APIC");
    // SAFETY: it maps the image, the stack in it, and all memory, where they are now.
    unsafe { cpu::set_root(kernel.root().0) };
    kernel
}

fn start_others(world: &World, kernel: &mut PageTable) {
    let others = &world.cores[1..];
    if others.is_empty() {
        return;
    }
    let is_low =
        |stretch: &&Stretch| stretch.end() <= LOW_END && stretch.size >= LOW_PAGES * FRAME_SIZE;
    let Some(low) = world.memory.iter().find(is_low) else {
        return warning!("there is no memory below 1 MiB to start the other cores in");
    };
    // SAFETY: it is free by the map, and not given to the pool of frames.
    let pad = unsafe { Launchpad::open(PhysAddr(low.start), kernel, &mut Pool, clock::tsc_khz()) };
    let pad = pad.expect("the low page in the kernel's table");
    for (&apic_id, index) in others.iter().zip(1..) {
        let launch = Launch {
            apic_id,
            stack_end: new_stack(),
            entry: other_core,
            argument: u64::from(index) << 32 | u64::from(apic_id),
        };
        if pad.launch(&launch, || cores::up() > index).is_err() {
            warning!("the core of APIC id {apic_id} does not start");
            break;
        }
    }
    pad.close(kernel);
}

/// A stack for a core, for good: its end.
fn new_stack() -> u64 {
    let stack = vec![0_u128; cores::STACK_SIZE / size_of::<u128>()].leak();
    stack.as_ptr_range().end as u64
}

/// Any core but the first.
extern "C" fn other_core(argument: u64) -> ! {
    let (index, apic_id) = ((argument >> 32) as u32, argument as u32);
    cores::set_up(index, apic_id);
    apic::enable();
    debug_assert_eq!(core_area::current().index, index);
    cores::is_up();
    cores::run()
}
