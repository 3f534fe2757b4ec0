//! Proves that this crate and the headers in `include/` describe the same bytes: a C program prints
//! what they say, and every line must equal what Rust says. What the header defines but the
//! tables below leave out fails the test too.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::mem::{offset_of, size_of};
use std::path::{Path, PathBuf};
use std::process::Command;

use insula_abi::channel::{
    self, AreaHeader, ChannelOpen, Channels, End, Ends, Pages, Right, Ring, Rings, Slot,
};
use insula_abi::lwk::{
    self, Clock, Counters, Delegation, DelegationPlace, Desk, Process, Reach, SpaceBegin,
    SpaceCreate, SpaceRange,
};
use insula_abi::{
    Chunk, Chunks, Cpu, CpuOwner, Description, Device, Devices, Hello, Image, Machine, MemoryCopy,
    Name, Names, NodeCreate, NodeInfo, NodeInterrupt, NodeRecreate, NodeStart, NodeStop,
    NodeSupervise, Pool, Reason, Request, State, ioctl,
};

/// A C expression and the value that Rust has for it.
type Facts = BTreeMap<String, i128>;

fn size_of_field<S, F>(_: fn(&S) -> &F) -> usize {
    size_of::<F>()
}

macro_rules! structure {
    ($facts:ident, $rust:ident, $c:literal, [$($field:ident),+]) => {
        $facts.insert(concat!("sizeof(struct ", $c, ")").into(), size_of::<$rust>() as i128);
        $(
            let (c, field) = ($c, stringify!($field));
            let offset = format!("offsetof(struct {c}, {field})");
            $facts.insert(offset, offset_of!($rust, $field) as i128);
            $facts.insert(
                format!("sizeof(((struct {c} *)0)->{field})"),
                size_of_field::<$rust, _>(|whole| &whole.$field) as i128,
            );
        )+
    };
}

macro_rules! values {
    ($facts:ident, { $($c:ident = $rust:expr),+ $(,)? }) => {
        $( $facts.insert(stringify!($c).into(), $rust as i128); )+
    };
}

fn structures() -> Facts {
    let mut facts = Facts::new();
    structure!(facts, Hello, "insula_hello", [magic, revision, reserved]);
    structure!(facts, Cpu, "insula_cpu", [cpu, apic_id, owner, node]);
    structure!(
        facts,
        Machine,
        "insula_machine",
        [
            cpus,
            cpus_capacity,
            cpus_count,
            flags,
            tsc_khz,
            trampoline,
            low_total,
            low_free,
            pool_total,
            pool_free,
            taken
        ]
    );
    structure!(
        facts,
        Request,
        "insula_request",
        [size, min_phys, max_phys, chunk_max, numa_node, flags]
    );
    structure!(
        facts,
        Pool,
        "insula_pool",
        [cpus, cpus_count, reserved, memory]
    );
    structure!(facts, Chunk, "insula_chunk", [start, size]);
    structure!(facts, Chunks, "insula_chunks", [chunks, capacity, count]);
    structure!(
        facts,
        MemoryCopy,
        "insula_copy",
        [from, to, size, source, flags]
    );
    structure!(
        facts,
        Image,
        "insula_image",
        [name, description, description_size, memory]
    );
    structure!(facts, Name, "insula_name", [name]);
    structure!(facts, Names, "insula_names", [names, capacity, count]);
    structure!(
        facts,
        Description,
        "insula_description",
        [bytes, capacity, size]
    );
    structure!(
        facts,
        NodeCreate,
        "insula_node_create",
        [
            name,
            description,
            description_size,
            cpus_count,
            cpus,
            memory,
            flags
        ]
    );
    structure!(
        facts,
        NodeStart,
        "insula_node_start",
        [entry, page_table, argument, power_off, reset]
    );
    structure!(
        facts,
        NodeInfo,
        "insula_node_info",
        [
            name,
            id,
            state,
            reason,
            cpus_count,
            cpus,
            cpus_capacity,
            flags,
            memory_size,
            starts,
            started_ns,
            ended_ns,
            start_tsc,
            entry_tsc,
            power_off,
            reset
        ]
    );
    structure!(facts, NodeStop, "insula_node_stop", [reason, reserved]);
    structure!(
        facts,
        NodeInterrupt,
        "insula_node_interrupt",
        [index, vector]
    );
    structure!(facts, NodeSupervise, "insula_node_supervise", [hold, flags]);
    structure!(
        facts,
        NodeRecreate,
        "insula_node_recreate",
        [description, description_size, flags]
    );
    structure!(
        facts,
        Device,
        "insula_device",
        [segment, bus, function, flags]
    );
    structure!(facts, Devices, "insula_devices", [devices, capacity, count]);
    facts.extend(channel_structures());
    facts.extend(lwk_structures());
    facts
}

fn channel_structures() -> Facts {
    let mut facts = Facts::new();
    structure!(facts, Slot, "insula_slot", [header, words]);
    structure!(facts, Pages, "insula_pages", [start, count, right]);
    structure!(
        facts,
        Ring,
        "insula_ring",
        [
            head,
            consumer_wake,
            consumer_reserved,
            producer_wake,
            producer_reserved
        ]
    );
    structure!(
        facts,
        End,
        "insula_end",
        [doorbell, session, open, reserved]
    );
    structure!(facts, Ends, "insula_ends", [base, node]);
    structure!(facts, Rings, "insula_rings", [to_node, to_base]);
    structure!(facts, Channels, "insula_channels", [start, count, slots]);
    structure!(facts, ChannelOpen, "insula_channel_open", [index, slots]);
    structure!(
        facts,
        AreaHeader,
        "insula_area_header",
        [magic, revision, count, slots, reserved]
    );
    facts
}

fn lwk_structures() -> Facts {
    let mut facts = Facts::new();
    structure!(
        facts,
        Clock,
        "insula_lwk_clock",
        [sequence, tsc, realtime_ns, monotonic_ns, mult, reserved]
    );
    structure!(
        facts,
        Delegation,
        "insula_lwk_delegation",
        [
            magic,
            revision,
            pages,
            base_doorbell,
            base_reserved,
            clock,
            lwk_doorbell,
            lwk_reserved,
            rung,
            interrupted,
            attention,
            process_of
        ]
    );
    structure!(
        facts,
        Counters,
        "insula_lwk_counters",
        [
            local_calls,
            delegated_calls,
            faults,
            questions,
            requests,
            entries,
            switches,
            rings
        ]
    );
    structure!(
        facts,
        Process,
        "insula_lwk_process",
        [
            base_state,
            desk,
            pid,
            space_start,
            space_end,
            arguments_size,
            released,
            base_reserved,
            signals,
            signals_reserved,
            lwk_state,
            page_table,
            lwk_reserved
        ]
    );
    structure!(facts, Reach, "insula_lwk_reach", [windows]);
    structure!(
        facts,
        Desk,
        "insula_lwk_desk",
        [
            turn,
            number,
            arguments,
            answer_turn,
            kind,
            result,
            value,
            answer_reserved,
            base_asleep,
            base_reserved,
            lwk_asleep,
            lwk_reserved
        ]
    );
    structure!(
        facts,
        DelegationPlace,
        "insula_delegation",
        [start, pages, reserved]
    );
    structure!(
        facts,
        SpaceCreate,
        "insula_space_create",
        [start, end, desk, flags]
    );
    structure!(facts, SpaceBegin, "insula_space_begin", [arguments_size]);
    structure!(
        facts,
        SpaceRange,
        "insula_space_range",
        [start, size, ticket, flags]
    );
    facts
}

fn constants() -> Facts {
    let mut facts = Facts::new();
    values!(facts, {
        INSULA_MAGIC = insula_abi::MAGIC,
        INSULA_REVISION = insula_abi::REVISION,
        INSULA_NAME_MAX = insula_abi::NAME_MAX,
        INSULA_DESCRIPTION_MAX = insula_abi::DESCRIPTION_MAX,
        INSULA_NODE_CPUS_MAX = insula_abi::NODE_CPUS_MAX,
        INSULA_GRANULE = insula_abi::GRANULE,
        INSULA_LOW_LIMIT = insula_abi::LOW_LIMIT,
        INSULA_NUMA_ANY = insula_abi::NUMA_ANY,
        INSULA_MACHINE_X2APIC = insula_abi::MACHINE_X2APIC,
        INSULA_NODE_SUPERVISED = insula_abi::NODE_SUPERVISED,
        INSULA_NODE_HELD = insula_abi::NODE_HELD,
        INSULA_NODE_RETIRED = insula_abi::NODE_RETIRED,
        INSULA_NODE_UNRESPONSIVE = insula_abi::NODE_UNRESPONSIVE,
        INSULA_RECREATE_UNLESS_RETIRED = insula_abi::RECREATE_UNLESS_RETIRED,
        INSULA_VECTOR_NMI = insula_abi::VECTOR_NMI,
        INSULA_DEVICE_CONFINED = insula_abi::DEVICE_CONFINED,
        INSULA_DEVICE_HELD = insula_abi::DEVICE_HELD,
        INSULA_IOC = ioctl::IOC,
        INSULA_HELLO = ioctl::HELLO,
        INSULA_MACHINE = ioctl::MACHINE,
        INSULA_POOL_RESERVE = ioctl::POOL_RESERVE,
        INSULA_POOL_RELEASE = ioctl::POOL_RELEASE,
        INSULA_MEMORY_CREATE = ioctl::MEMORY_CREATE,
        INSULA_IMAGE_ADD = ioctl::IMAGE_ADD,
        INSULA_IMAGE_OPEN = ioctl::IMAGE_OPEN,
        INSULA_IMAGE_REMOVE = ioctl::IMAGE_REMOVE,
        INSULA_IMAGE_LIST = ioctl::IMAGE_LIST,
        INSULA_NODE_CREATE = ioctl::NODE_CREATE,
        INSULA_NODE_OPEN = ioctl::NODE_OPEN,
        INSULA_NODE_LIST = ioctl::NODE_LIST,
        INSULA_MEMORY_GROW = ioctl::MEMORY_GROW,
        INSULA_MEMORY_CHUNKS = ioctl::MEMORY_CHUNKS,
        INSULA_MEMORY_COPY = ioctl::MEMORY_COPY,
        INSULA_NODE_START = ioctl::NODE_START,
        INSULA_NODE_STOP = ioctl::NODE_STOP,
        INSULA_NODE_INFO = ioctl::NODE_INFO,
        INSULA_NODE_REMOVE = ioctl::NODE_REMOVE,
        INSULA_NODE_MEMORY = ioctl::NODE_MEMORY,
        INSULA_NODE_INTERRUPT = ioctl::NODE_INTERRUPT,
        INSULA_NODE_SUPERVISE = ioctl::NODE_SUPERVISE,
        INSULA_NODE_RETIRE = ioctl::NODE_RETIRE,
        INSULA_NODE_RECREATE = ioctl::NODE_RECREATE,
        INSULA_NODE_DEVICE_ADD = ioctl::NODE_DEVICE_ADD,
        INSULA_NODE_DEVICES = ioctl::NODE_DEVICES,
        INSULA_DESCRIPTION = ioctl::DESCRIPTION,
        INSULA_NODE_CHANNELS = ioctl::NODE_CHANNELS,
        INSULA_CHANNEL_OPEN = ioctl::CHANNEL_OPEN,
        INSULA_CHANNEL_RING = ioctl::CHANNEL_RING,
        INSULA_NODE_DELEGATION = ioctl::NODE_DELEGATION,
        INSULA_SPACE_CREATE = ioctl::SPACE_CREATE,
        INSULA_SPACE_BEGIN = ioctl::SPACE_BEGIN,
        INSULA_SPACE_DESK = ioctl::SPACE_DESK,
        INSULA_SPACE_SIT = ioctl::SPACE_SIT,
        INSULA_SPACE_LEAVE = ioctl::SPACE_LEAVE,
        INSULA_SPACE_WAIT = ioctl::SPACE_WAIT,
        INSULA_SPACE_RING = ioctl::SPACE_RING,
        INSULA_SPACE_SIGNAL = ioctl::SPACE_SIGNAL,
        INSULA_SPACE_RELEASE = ioctl::SPACE_RELEASE,
        INSULA_SPACE_AHEAD = ioctl::SPACE_AHEAD,
    });
    facts.extend(channel_constants());
    facts.extend(lwk_constants());
    facts
}

fn channel_constants() -> Facts {
    let mut facts = Facts::new();
    values!(facts, {
        INSULA_CHANNEL_MAGIC = channel::CHANNEL_MAGIC,
        INSULA_CHANNEL_REVISION = channel::CHANNEL_REVISION,
        INSULA_SLOT_BYTES = channel::SLOT_BYTES,
        INSULA_SLOTS_MIN = channel::SLOTS_MIN,
        INSULA_SLOTS_MAX = channel::SLOTS_MAX,
        INSULA_HEADER_TURN_MASK = channel::HEADER_TURN_MASK,
        INSULA_HEADER_SIZE_SHIFT = channel::HEADER_SIZE_SHIFT,
        INSULA_HEADER_PAGES_SHIFT = channel::HEADER_PAGES_SHIFT,
        INSULA_HEADER_KIND_SHIFT = channel::HEADER_KIND_SHIFT,
        INSULA_WAKE_ASLEEP = channel::WAKE_ASLEEP,
        INSULA_DOORBELL_VALID = channel::DOORBELL_VALID,
        INSULA_DOORBELL_APIC_SHIFT = channel::DOORBELL_APIC_SHIFT,
        INSULA_DOORBELL_VECTOR_MASK = channel::DOORBELL_VECTOR_MASK,
        INSULA_CHANNEL_RINGS = channel::CHANNEL_RINGS,
        INSULA_RINGS_SLOTS = channel::RINGS_SLOTS,
        INSULA_CHANNELS_MAX = channel::CHANNELS_MAX,
    });
    // Of a macro with arguments, some values.
    facts.insert(
        "INSULA_RINGS_SIZE(64)".into(),
        channel::rings_size(64).into(),
    );
    facts.insert(
        "INSULA_CHANNEL_SIZE(256)".into(),
        channel::channel_size(256).into(),
    );
    facts.insert(
        "INSULA_AREA_SIZE(7, 64)".into(),
        channel::area_size(7, 64).into(),
    );
    facts
}

fn lwk_constants() -> Facts {
    let mut facts = Facts::new();
    values!(facts, {
        INSULA_LWK_MAGIC = lwk::LWK_MAGIC,
        INSULA_LWK_REVISION = lwk::LWK_REVISION,
        INSULA_LWK_PAGES_MIN = lwk::PAGES_MIN,
        INSULA_LWK_PAGES_MAX = lwk::PAGES_MAX,
        INSULA_LWK_DESKS_PER_PAGE = lwk::DESKS_PER_PAGE,
        INSULA_LWK_COUNTERS_PAGES = lwk::COUNTERS_PAGES,
        INSULA_LWK_REACH_SHIFT = lwk::REACH_SHIFT,
        INSULA_LWK_RESULT = lwk::ANSWER_RESULT,
        INSULA_LWK_FAULT = lwk::ANSWER_FAULT,
        INSULA_LWK_REQUEST = lwk::request::REQUEST,
        INSULA_LWK_RESOLVED = lwk::request::RESOLVED,
        INSULA_LWK_ARGUMENTS = lwk::request::ARGUMENTS,
        INSULA_LWK_THREAD = lwk::request::THREAD,
        INSULA_LWK_THREAD_END = lwk::request::THREAD_END,
        INSULA_LWK_EXIT = lwk::request::EXIT,
        INSULA_LWK_RELEASE = lwk::request::RELEASE,
        INSULA_LWK_AHEAD = lwk::request::AHEAD,
        INSULA_LWK_RELEASE_MAPPED = lwk::RELEASE_MAPPED,
        INSULA_SPACE_DESKS = lwk::SPACE_DESKS,
    });
    facts
}

fn enumerators() -> Facts {
    let mut facts = Facts::new();
    values!(facts, {
        INSULA_CPU_BASE = CpuOwner::BASE.0,
        INSULA_CPU_POOL = CpuOwner::POOL.0,
        INSULA_CPU_NODE = CpuOwner::NODE.0,
        INSULA_CREATING = State::CREATING.0,
        INSULA_CREATED = State::CREATED.0,
        INSULA_RUNNING = State::RUNNING.0,
        INSULA_STOPPED = State::STOPPED.0,
        INSULA_REASON_NONE = Reason::NONE.0,
        INSULA_REASON_POWER_OFF = Reason::POWER_OFF.0,
        INSULA_REASON_RESET = Reason::RESET.0,
        INSULA_REASON_STOPPED = Reason::STOPPED.0,
        INSULA_REASON_KILLED = Reason::KILLED.0,
        INSULA_REASON_CRASHED = Reason::CRASHED.0,
        INSULA_REASON_BASE = Reason::BASE.0,
        INSULA_REASON_HALTED = Reason::HALTED.0,
        INSULA_REASON_HUNG = Reason::HUNG.0,
        INSULA_GRANTED = Right::GRANTED.0,
        INSULA_LENT = Right::LENT.0,
        INSULA_MOVED = Right::MOVED.0,
        INSULA_LWK_NONE = lwk::base_state::NONE,
        INSULA_LWK_BEGUN = lwk::base_state::BEGUN,
        INSULA_LWK_GONE = lwk::base_state::GONE,
        INSULA_LWK_UNKNOWN = lwk::process_state::UNKNOWN,
        INSULA_LWK_ALIVE = lwk::process_state::ALIVE,
        INSULA_LWK_DONE = lwk::process_state::DONE,
    });
    facts
}

fn include_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("include")
}

const HEADERS: [&str; 3] = ["insula.h", "insula_channel.h", "insula_lwk.h"];

/// The headers without their comments.
fn header() -> String {
    let read = |name| std::fs::read_to_string(include_folder().join(name)).unwrap();
    let text: String = HEADERS.map(read).concat();
    let mut bare = String::new();
    let mut rest = text.as_str();
    while let Some((before, after)) = rest.split_once("/*") {
        bare.push_str(before);
        rest = after.split_once("*/").expect("an unfinished comment").1;
    }
    bare + rest
}

/// Compiles and runs a program that prints every expression's value, one to a line.
fn ask_c(expressions: &Facts) -> Facts {
    let mut source = String::new();
    for header in HEADERS {
        writeln!(source, "#include \"{header}\"").unwrap();
    }
    source.push_str("#include <stddef.h>\n#include <stdio.h>\nint main(void)\n{\n");
    for expression in expressions.keys() {
        writeln!(source, "\tprintf(\"%lld\\n\", (long long)({expression}));").unwrap();
    }
    source.push_str("\treturn 0;\n}\n");
    let folder = tempfile::tempdir().unwrap();
    let (program, file) = (folder.path().join("layout"), folder.path().join("layout.c"));
    std::fs::write(&file, source).unwrap();
    let compiled = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Wpadded", "-Werror", "-I"])
        .arg(include_folder())
        .arg("-o")
        .args([&program, &file])
        .status()
        .expect("the C compiler `cc` is needed");
    assert!(compiled.success(), "the header does not stand by itself");
    let printed = String::from_utf8(Command::new(program).output().unwrap().stdout).unwrap();
    expressions
        .keys()
        .cloned()
        .zip(printed.lines().map(|line| line.parse().unwrap()))
        .collect()
}

#[test]
fn c_and_rust_agree() {
    let mut rust = structures();
    rust.extend(constants());
    rust.extend(enumerators());
    let c = ask_c(&rust);
    assert_eq!(c.len(), rust.len());
    for (expression, value) in &rust {
        assert_eq!(
            c[expression], *value,
            "{expression}: left is C, right is Rust"
        );
    }
}

#[test]
fn no_structure_and_no_field_is_left_out() {
    let known: BTreeSet<_> = structures().into_keys().collect();
    let header = header();
    for block in header
        .split("\nstruct ")
        .skip(1)
        .filter(|block| block.split('{').next().unwrap().ends_with(' '))
    {
        let (name, body) = block.split_once(" {").unwrap();
        for field in body
            .split_once('}')
            .unwrap()
            .0
            .split(';')
            .filter_map(|line| line.split_whitespace().last())
        {
            let field = field.split('[').next().unwrap();
            assert!(
                known.contains(&format!("offsetof(struct {name}, {field})")),
                "{name}.{field} has no mirror"
            );
        }
    }
    assert_eq!(
        header.matches("\nstruct ").count(),
        known
            .iter()
            .filter(|f| f.starts_with("sizeof(struct"))
            .count()
    );
}

#[test]
fn no_constant_is_left_out() {
    let known: BTreeSet<_> = constants()
        .into_keys()
        .chain(enumerators().into_keys())
        .collect();
    let header = header();
    let defined = header
        .lines()
        .filter_map(|line| line.strip_prefix("#define ")?.split_whitespace().next());
    let is_known = |name: &str| match name.split_once('(') {
        Some((name, _)) => known
            .iter()
            .any(|fact| fact.starts_with(&format!("{name}("))),
        None => known.contains(name),
    };
    let enumerated = header
        .lines()
        .filter_map(|line| line.strip_prefix('\t')?.split_once(" = "))
        .map(|(name, _)| name);
    for name in defined.chain(enumerated) {
        let guard = HEADERS
            .iter()
            .any(|header| name == header.to_uppercase().replace('.', "_"));
        assert!(guard || is_known(name), "{name} has no mirror");
    }
}
