//! The memory of a confined node's monitor, its tables walked as by a processor.

mod support;

use insula_abi::monitor::{
    MONITOR_CORE_SIZE, MONITOR_MAGIC, MONITOR_STATE, Message, Monitor, MonitorCore, MonitorFunction,
};
use insula_boot::monitor::{ConfinedCopy, ConfinedNode, MonitorLayout, NestedPaging, SharedMemory};
use insula_boot::{
    Chunk, Configuration, ConfinedFunction, Layout, LayoutError, NodeDescription, PciBus, lay_out,
};
use proptest::prelude::*;
use support::{GIB, LOW, MIB, PAGE, kernel, node};
use zerocopy::FromBytes;

const PRESENT: u64 = 1 << 0;
const WRITABLE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
const LARGE: u64 = 1 << 7;
/// Of pages of AMD's tables: write-through and cache disable.
const UNCACHED: u64 = 3 << 3;
/// Of entries of Intel's tables, in place of [`USER`].
const EXECUTABLE: u64 = 1 << 2;
/// Of pages of Intel's tables: the memory type, write-back.
const WRITE_BACK: u64 = 6 << 3;
const KINDS: [NestedPaging; 2] = [NestedPaging::Npt, NestedPaging::Ept];
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
/// Link address of the monitor's image.
const LINK_ADDRESS: u64 = 0xffff_ffff_8100_0000;
/// Where a guest without a kernel halts.
const RESET_VECTOR: u64 = 0xffff0;

const MONITOR: Chunk = Chunk {
    start: 3 * GIB,
    size: 2 * MIB,
};

/// A page of a table: address, frame, size and bits.
#[derive(Clone, Copy, Debug)]
struct Mapped {
    address: u64,
    frame: u64,
    size: u64,
    bits: u64,
}

/// The bytes at `address` of the monitor's memory; zero where the layout has none.
fn read(layout: &MonitorLayout, address: u64, size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    for piece in &layout.pieces {
        for (at, byte) in piece.bytes.iter().enumerate() {
            let offset = (piece.address + at as u64).wrapping_sub(address) as usize;
            if let Some(to) = bytes.get_mut(offset) {
                *to = *byte;
            }
        }
    }
    bytes
}

/// All pages of the table at `root`, and all bits that its upper entries have in common.
fn walk(layout: &MonitorLayout, root: u64) -> Vec<Mapped> {
    let mut found = Vec::new();
    let mut open = vec![(root, 4_u32, 0_u64)];
    while let Some((table, level, start)) = open.pop() {
        let size = 1_u64 << (12 + 9 * (level - 1));
        let bytes = read(layout, table, PAGE as usize);
        for (index, entry) in (0..).zip(bytes.chunks(8)) {
            let entry = u64::from_le_bytes(entry.try_into().expect("8 bytes"));
            let address = start + index * size;
            if entry & PRESENT == 0 {
                continue;
            }
            if level == 1 || entry & LARGE != 0 {
                let (frame, bits) = (entry & ADDRESS, entry & !ADDRESS);
                found.push(Mapped {
                    address,
                    frame,
                    size,
                    bits,
                });
            } else {
                assert_eq!(entry & WRITABLE, WRITABLE, "the pages decide");
                open.push((entry & ADDRESS, level - 1, address));
            }
        }
    }
    found
}

fn header(layout: &MonitorLayout) -> Monitor {
    let bytes = read(layout, MONITOR.start + layout.header, size_of::<Monitor>());
    Monitor::read_from_bytes(&bytes).expect("its size")
}

fn laid_out(description: &NodeDescription, nested_paging: NestedPaging) -> (Layout, MonitorLayout) {
    let image = kernel(64 << 10);
    let confined = ConfinedNode {
        node: description,
        nested_paging,
        image: &image,
    };
    let needed = confined.monitor_size().expect("a valid node");
    assert!(needed <= MONITOR.size, "{needed:#x}");
    let layout = lay_out(description).expect("fits");
    let monitor = confined.lay_out_monitor(&layout, MONITOR).expect("fits");
    (layout, monitor)
}

fn contains(chunks: &[Chunk], start: u64, size: u64) -> bool {
    let holds = |chunk: &Chunk| chunk.start <= start && start + size <= chunk.start + chunk.size;
    chunks.iter().any(holds)
}

/// Bits of each page, writable or not: accessible to programs on AMD's processors; executable, cached and
/// nothing else on Intel's.
fn page_bits(kind: NestedPaging) -> u64 {
    match kind {
        NestedPaging::Npt => PRESENT | USER,
        NestedPaging::Ept => PRESENT | EXECUTABLE | WRITE_BACK,
    }
}

/// Each page is the node's own at its own address, or one of three of the monitor's, of which only that
/// of the BIOS data area can be written.
fn check_nested(layout: &MonitorLayout, node: &[Chunk], kind: NestedPaging) {
    let pages = walk(layout, header(layout).nested_page_table);
    let mut foreign = std::collections::BTreeSet::new();
    let mut own = 0;
    for page in &pages {
        let bits = page.bits & !(WRITABLE | LARGE);
        assert_eq!(bits, page_bits(kind), "{page:x?}");
        if contains(node, page.address, page.size) {
            assert_eq!((page.frame, page.bits & WRITABLE), (page.address, WRITABLE));
            own += page.size;
            continue;
        }
        assert_eq!(page.size, PAGE, "{page:x?}");
        let is_writable = page.bits & WRITABLE != 0;
        assert_eq!(is_writable, page.address == 0, "{page:x?}");
        foreign.insert(page.frame);
    }
    assert_eq!(own, node.iter().map(|chunk| chunk.size).sum::<u64>());
    assert_eq!(foreign.len(), 3);
    for frame in foreign {
        assert!(contains(&[MONITOR], frame, PAGE), "{frame:#x}");
        let content = read(layout, frame, PAGE as usize);
        let reset = pages
            .iter()
            .any(|page| page.frame == frame && page.address == 0xff000);
        let nothing = content.iter().all(|&byte| byte == 0);
        assert_eq!(nothing, !reset, "the guest sees {frame:#x} of the monitor");
    }
}

const CHUNKS: [Chunk; 2] = [
    LOW,
    Chunk {
        start: 6 * GIB,
        size: 128 * MIB,
    },
];

#[test]
fn guest_sees_its_memory_and_nothing_else() {
    let kernel = kernel(20 * MIB);
    let persistent = [Chunk {
        start: 8 * GIB,
        size: 16 * MIB,
    }];
    let node = NodeDescription {
        persistent: &persistent,
        ..node(&kernel, &CHUNKS)
    };
    for kind in KINDS {
        let (_, monitor) = laid_out(&node, kind);
        check_nested(&monitor, &[&CHUNKS[..], &persistent[..]].concat(), kind);
    }
}

/// A function with registers in two windows, and its MSI-X table in two pages of the first one.
const FUNCTION: ConfinedFunction = ConfinedFunction {
    number: 0,
    config: [7; 64],
    writable: [6; 64],
    message_table: Chunk {
        start: 0xfe80_2000,
        size: 2 * PAGE,
    },
    messages: 3,
};
const WINDOWS: [Chunk; 2] = [
    Chunk {
        start: 0xfe80_0000,
        size: 8 * PAGE,
    },
    Chunk {
        start: 0x70_0000_0000,
        size: 4 * MIB,
    },
];
const BUS: PciBus = PciBus {
    segment: 0,
    number: 2,
    configuration: Configuration::Ports(&FUNCTION),
    windows: &WINDOWS,
    ports: &[],
};

#[test]
fn registers_of_a_function_are_uncached_and_its_message_table_is_memory() {
    let kernel = kernel(20 * MIB);
    let node = NodeDescription {
        buses: &[BUS],
        ..node(&kernel, &CHUNKS)
    };
    for (kind, device) in [
        (NestedPaging::Npt, PRESENT | WRITABLE | USER | UNCACHED),
        (NestedPaging::Ept, PRESENT | WRITABLE | EXECUTABLE),
    ] {
        let (_, monitor) = laid_out(&node, kind);
        let header = header(&monitor);
        let pages = walk(&monitor, header.nested_page_table);
        let in_windows = |page: &&Mapped| contains(&WINDOWS, page.address, page.size);
        let mut registers = 0;
        for page in pages.iter().filter(in_windows) {
            if page.address == FUNCTION.message_table.start {
                assert_eq!(page.bits, page_bits(kind) | WRITABLE);
                assert!(contains(&[MONITOR], page.frame, PAGE));
                let messages = read(&monitor, page.frame, PAGE as usize);
                let message = Message::read_from_bytes(&messages[32..48]).expect("its size");
                assert_eq!((message.control, message.address), (1, 0), "masked");
                assert!(messages[48..].iter().all(|&byte| byte == 0));
                continue;
            }
            assert_eq!((page.frame, page.bits & !LARGE), (page.address, device));
            registers += page.size;
        }
        let all: u64 = WINDOWS.iter().map(|window| window.size).sum();
        assert_eq!(registers, all - FUNCTION.message_table.size);
        let described = read(&monitor, header.functions, size_of::<MonitorFunction>());
        let described = MonitorFunction::read_from_bytes(&described).expect("its size");
        assert_eq!((header.functions_count, described.address), (1, 0x200));
        assert_eq!((described.config[63], described.writable[63]), (7, 6));
        let table = pages
            .iter()
            .find(|page| page.address == FUNCTION.message_table.start);
        assert_eq!(table.expect("mapped").frame, described.messages);
    }
}

#[test]
fn what_cannot_be_confined_is_refused() {
    let direct = Configuration::Memory { ecam: 0xb000_0000 };
    let outside = ConfinedFunction {
        message_table: Chunk {
            start: 0xfe80_7000,
            size: 2 * PAGE,
        },
        ..FUNCTION
    };
    let invalid = LayoutError::InvalidBus {
        segment: 0,
        number: 2,
    };
    let refused = |buses: &[PciBus]| {
        let kernel = kernel(20 * MIB);
        let node = NodeDescription {
            buses,
            ..node(&kernel, &CHUNKS)
        };
        let confined = ConfinedNode {
            node: &node,
            nested_paging: NestedPaging::Npt,
            image: &kernel,
        };
        lay_out(&node).err().or(confined.monitor_size().err())
    };
    let configured = |configuration| PciBus {
        configuration,
        ..BUS
    };
    let expected = LayoutError::NotConfined {
        segment: 0,
        number: 2,
    };
    assert_eq!(refused(&[configured(direct)]), Some(expected));
    assert_eq!(
        refused(&[configured(Configuration::Ports(&outside))]),
        Some(invalid)
    );
    let many: Vec<PciBus> = (1..10).map(|number| PciBus { number, ..BUS }).collect();
    let expected = LayoutError::NotConfined {
        segment: 0,
        number: 9,
    };
    assert_eq!(refused(&many), Some(expected));
}

#[test]
fn guest_without_a_kernel_halts() {
    let kernel = kernel(20 * MIB);
    let (_, monitor) = laid_out(&node(&kernel, &CHUNKS), NestedPaging::Npt);
    let pages = walk(&monitor, header(&monitor).nested_page_table);
    let page = pages
        .iter()
        .find(|page| page.address == RESET_VECTOR & !0xfff);
    let at = page.expect("mapped").frame + (RESET_VECTOR & 0xfff);
    assert_eq!(read(&monitor, at, 3), [0xf4, 0xeb, 0xfd]);
}

#[test]
fn monitor_has_its_memory_where_it_is_linked() {
    let kernel = kernel(20 * MIB);
    let description = NodeDescription {
        spare_cpus: &[7, 5],
        ..node(&kernel, &CHUNKS)
    };
    let (layout, monitor) = laid_out(&description, NestedPaging::Npt);
    let pages = walk(&monitor, monitor.page_table);
    let (low, high): (Vec<Mapped>, Vec<Mapped>) =
        pages.iter().copied().partition(|page| page.address < GIB);
    let trampoline = low
        .first()
        .map(|page| (page.address, page.frame, page.size));
    assert_eq!(
        trampoline,
        Some((description.trampoline, description.trampoline, PAGE))
    );
    assert_eq!(low.len(), 1);
    // Addresses of the walk are not sign-extended.
    let linked = LINK_ADDRESS & 0xffff_ffff_ffff;
    let mapped = high
        .first()
        .map(|page| (page.address, page.frame, page.size));
    assert_eq!(mapped, Some((linked, MONITOR.start, MONITOR.size)));
    assert_eq!(
        (monitor.image, monitor.entry),
        (MONITOR.start, LINK_ADDRESS + 0x200)
    );

    let header = header(&monitor);
    assert_eq!((header.magic, header.cores_count), (MONITOR_MAGIC, 4));
    assert_eq!(
        (header.entry, header.page_table),
        (layout.entry, layout.page_table)
    );
    assert_eq!(header.argument, layout.argument);
    assert_eq!(
        monitor.argument - LINK_ADDRESS,
        header.cores - MONITOR.start
    );
    let cpus = description.cpus.iter().chain(description.spare_cpus);
    for (index, &apic_id) in (0..).zip(cpus) {
        let at = header.cores + u64::from(index) * MONITOR_CORE_SIZE;
        let core = read(&monitor, at, size_of::<MonitorCore>());
        let core = MonitorCore::read_from_bytes(&core).expect("its size");
        assert_eq!((core.apic_id, core.index), (apic_id, index));
        assert_eq!(core.owned, 0, "the module says which cores the node has");
        assert_eq!(core.header, LINK_ADDRESS + monitor.header);
    }
}

#[test]
fn pieces_are_apart_and_inside() {
    let kernel = kernel(20 * MIB);
    let (_, monitor) = laid_out(&node(&kernel, &CHUNKS), NestedPaging::Npt);
    let mut pieces: Vec<_> = monitor.pieces.iter().collect();
    pieces.sort_by_key(|piece| piece.address);
    for piece in &pieces {
        assert!(contains(
            &[MONITOR],
            piece.address,
            piece.bytes.len() as u64
        ));
    }
    for pair in pieces.windows(2) {
        assert!(pair[0].address + pair[0].bytes.len() as u64 <= pair[1].address);
    }
}

proptest! {
    #[test]
    fn no_node_reaches_a_frame_that_is_not_its_own(
        low in 0x10_u64..0x90,
        sizes in prop::collection::vec((16_u64..40, 1_u64..20), 1..4),
    ) {
        let mut chunks = vec![Chunk { start: low * PAGE, size: 0x9000 }];
        let mut next = 4 * GIB;
        for (size, gap) in sizes {
            chunks.push(Chunk { start: next, size: 2 * size * MIB });
            next += 2 * (size + gap) * MIB;
        }
        let kernel = kernel(10 * MIB);
        let node = NodeDescription { initrd_size: 0, ..node(&kernel, &chunks) };
        for kind in KINDS {
            let (_, monitor) = laid_out(&node, kind);
            check_nested(&monitor, &chunks, kind);
        }
    }
}

/// A copy's table, like [`check_nested`]: it reads the frames that it shares where its kernel takes them
/// to be, and writes none.
fn check_copy(layout: &MonitorLayout, shared: &[SharedMemory], kind: NestedPaging) {
    let mut left: u64 = shared.iter().map(|one| one.frames.size).sum();
    for page in walk(layout, header(layout).nested_page_table) {
        assert_eq!(
            page.bits & !(WRITABLE | LARGE),
            page_bits(kind),
            "{page:x?}"
        );
        let holds = |one: &&SharedMemory| {
            let skip = page.address.wrapping_sub(one.address);
            skip < one.frames.size && skip + page.size <= one.frames.size
        };
        match shared.iter().find(holds) {
            Some(one) => {
                let frame = one.frames.start + page.address - one.address;
                assert_eq!((page.frame, page.bits & WRITABLE), (frame, 0), "{page:x?}");
                left -= page.size;
            }
            None => {
                assert!(contains(&[MONITOR], page.frame, page.size), "{page:x?}");
                assert_eq!(page.bits & WRITABLE != 0, page.address == 0, "{page:x?}");
            }
        }
    }
    assert_eq!(left, 0, "all of it is mapped");
}

proptest! {
    #[test]
    fn a_copy_writes_no_frame_that_it_shares(
        low in 0x10_u64..0x90,
        sizes in prop::collection::vec((1_u64..3, 0_u64..8), 1..3),
        misplaced in any::<bool>(),
    ) {
        let low = SharedMemory {
            address: low * PAGE,
            frames: Chunk { start: 7 * GIB, size: 0x9000 },
        };
        let (mut shared, mut address, mut frame) = (vec![low], GIB, 9 * GIB);
        for (size, gap) in sizes {
            // A frame that is aligned otherwise is mapped page by page.
            let start = frame + if misplaced { 3 * PAGE } else { 0 };
            let frames = Chunk { start, size: 2 * size * MIB };
            shared.push(SharedMemory { address, frames });
            address += 2 * (size + gap) * MIB;
            frame += 2 * (size + gap) * MIB;
        }
        let (image, state) = (kernel(64 << 10), [7; 100]);
        for nested_paging in KINDS {
            let copy = ConfinedCopy {
                cpus: &[4, 2],
                known_cpus: &[1, 3],
                states: &[&state, &state],
                memory: &shared,
                tsc_offset: 5,
                interrupt: Some(0x31),
                trampoline: 0x8000,
                nested_paging,
                image: &image,
            };
            prop_assert!(copy.monitor_size() <= MONITOR.size);
            let monitor = copy.lay_out_monitor(MONITOR).expect("fits");
            check_copy(&monitor, &shared, nested_paging);
            let header = header(&monitor);
            prop_assert_eq!((header.goes_on, header.tsc_offset, header.interrupt), (1, 5, 0x31));
            for (index, (apic_id, known)) in (0..).zip([(4, 1), (2, 3)]) {
                let at = header.cores + index * MONITOR_CORE_SIZE;
                let core = read(&monitor, at, size_of::<MonitorCore>());
                let core = MonitorCore::read_from_bytes(&core).expect("its size");
                prop_assert_eq!((core.apic_id, core.guest_apic_id), (apic_id, known));
                prop_assert_eq!(read(&monitor, at + MONITOR_STATE, 100), &state);
            }
        }
    }
}
