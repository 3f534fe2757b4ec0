//! Boot: from the first Rust function to the loops of all cores.

#![allow(
    unsafe_code,
    reason = "tables give the addresses of memory, page tables are loaded"
)]

use alloc::vec;

use insula_bare::memory::{self, PhysAddr};
use insula_bare::paging::PageTable;
use insula_bare::start::{LOW_PAGES, SecondaryCore, Trampoline};
use insula_bare::{Entry, FRAME_SIZE, apic, called, cpu, per_core, trap};

use crate::base::area::{self, DelegationArea};
use crate::hw::boot_info::BootInfo;
use crate::hw::boot_info::bytes::Reader;
use crate::hw::boot_info::memory_map::MemoryRange;
use crate::hw::memory::table_frames::KernelFrames;
use crate::hw::memory::{frames, heap, kernel_table};
use crate::hw::{clock, cores, interrupts, log, power};
use crate::sched::core_loop;
use crate::syscall::ports;
use crate::task::{pci, process_table};
use crate::{info, warning};

/// End of the low memory in which cores are started.
const LOW_END: u64 = 1 << 20;

/// Entry of the first core, on its early stack and page table. `shared`: the page by which the base
/// shares the core, or 0.
pub fn first_core(boot_params: u64, image: u64, shared: u64) -> ! {
    called::init(shared);
    clock::init();
    heap::init();
    let entry = entry(boot_params, image);
    let (Entry::Started { boot_params, image } | Entry::Called { boot_params, image }) = entry;
    let image = MemoryRange {
        start: image.0,
        size: kernel_table::image_size(),
    };
    let boot_info = read_boot_info(boot_params, image);
    clock::set_frequency(boot_info.command_line.tsc_khz().unwrap_or(1_000_000));
    info!("{}", log::banner());
    info!("command line: {}", boot_info.command_line.text);
    power::init(&boot_info);
    cores::set_apic_ids(&boot_info.cores);
    cores::set_up(0, boot_info.cores[0]);
    trap::set_interrupt_handler(interrupts::handle_interrupt);
    called::pass_on_nmis();
    add_memory(&boot_info, image);
    let mut kernel = load_kernel_table(&boot_info, image);
    if let Entry::Started { .. } = entry {
        apic::enable();
        apic::calibrate_timer(clock::tsc_khz());
    }
    cores::mark_up();
    start_others(&boot_info, &mut kernel);
    kernel_table::set(kernel);
    pci::find_functions(&boot_info.buses);
    info!(
        "{} of {} cores run, {} KiB of memory are free",
        cores::up(),
        boot_info.cores.len(),
        frames::free_bytes() >> 10
    );
    assert!(
        !boot_info.command_line.has("crash"),
        "panic requested on the command line"
    );
    while boot_info.command_line.has("hang") {
        cpu::relax();
    }
    if boot_info.command_line.has("once") {
        process_table::power_off_after_last();
    }
    if boot_info.command_line.has("ioperm") {
        ports::allow();
    }
    match boot_info.shared_memory.and_then(DelegationArea::find) {
        Some(area) => area::accept_processes(area),
        None => warning!("there is no delegation area: no program can run"),
    }
    power::enable_button();
    core_loop::run()
}

/// Describes how the kernel was entered.
fn entry(boot_params: u64, image: u64) -> Entry {
    let (boot_params, image) = (PhysAddr(boot_params), PhysAddr(image));
    match called::page() {
        None => Entry::Started { boot_params, image },
        Some(_) => Entry::Called { boot_params, image },
    }
}

fn read_boot_info(boot_params: PhysAddr, image: MemoryRange) -> BootInfo {
    // The loader's table maps only the node's memory. Any other address faults, which is a panic
    // with that address: a good enough message this early.
    let copy = |address: u64, to: &mut [u8]| {
        if address.saturating_add(to.len() as u64) > memory::DIRECT_MAP_SIZE {
            return false;
        }
        // SAFETY: nobody writes what the loader has left.
        unsafe { memory::read(PhysAddr(address), to) };
        true
    };
    BootInfo::read(&Reader::new(&copy), boot_params.0).unwrap_or_else(|error| {
        panic!(
            "the image at {:#x} was given no valid boot parameters: {error:?}",
            image.start
        )
    })
}

fn add_memory(boot_info: &BootInfo, image: MemoryRange) {
    for &range in boot_info
        .memory
        .iter()
        .filter(|range| range.start >= LOW_END)
    {
        // SAFETY: the memory map says that the range is free; only the image in it is in use.
        unsafe { frames::add_range(range, image) };
    }
}

/// Replaces the loader's page table by one that maps no more than the kernel needs.
fn load_kernel_table(boot_info: &BootInfo, image: MemoryRange) -> PageTable {
    let mut kernel = kernel_table::build(boot_info, PhysAddr(image.start))
        .expect("memory for the kernel's table");
    let max_id = boot_info.cores.iter().max().copied().unwrap_or_default();
    let mode = apic::choose_mode(max_id, &mut kernel, &mut KernelFrames)
        .expect("mapping the APIC's registers");
    info!("local APICs: {mode}");
    if let Some(page) = called::page() {
        let mapped = page.map(&mut kernel, &mut KernelFrames);
        mapped.expect("mapping the pages of the shared core");
        info!("the core is shared with the base");
    }
    // SAFETY: the table maps the image with the current stack, and all memory, where they are now.
    unsafe { cpu::set_root(kernel.root().0) };
    kernel
}

fn start_others(boot_info: &BootInfo, kernel: &mut PageTable) {
    let others = &boot_info.cores[1..];
    if others.is_empty() {
        return;
    }
    let is_low =
        |range: &&MemoryRange| range.end() <= LOW_END && range.size >= LOW_PAGES * FRAME_SIZE;
    let Some(low) = boot_info.memory.iter().find(is_low) else {
        return warning!("no memory below 1 MiB: the other cores are not started");
    };
    // SAFETY: the memory map says that it is free, and it is not given to the frame allocator.
    let trampoline = unsafe {
        Trampoline::install(
            PhysAddr(low.start),
            kernel,
            &mut KernelFrames,
            clock::tsc_khz(),
        )
    };
    let trampoline = trampoline.expect("mapping the trampoline page");
    for (&apic_id, index) in others.iter().zip(1..) {
        let core = SecondaryCore {
            apic_id,
            stack_end: new_stack(),
            entry: other_core,
            argument: u64::from(index) << 32 | u64::from(apic_id),
        };
        if trampoline.start(&core, || cores::up() > index).is_err() {
            warning!("the core with APIC id {apic_id} does not start");
            break;
        }
    }
    trampoline.remove(kernel);
}

/// Allocates a core's stack, which is never freed. Returns its end.
fn new_stack() -> u64 {
    let stack = vec![0_u128; cores::STACK_SIZE / size_of::<u128>()].leak();
    stack.as_ptr_range().end as u64
}

/// Entry of all cores but the first.
extern "C" fn other_core(argument: u64) -> ! {
    let (index, apic_id) = ((argument >> 32) as u32, argument as u32);
    cores::set_up(index, apic_id);
    apic::enable();
    debug_assert_eq!(per_core::current().index, index);
    cores::mark_up();
    core_loop::run()
}
