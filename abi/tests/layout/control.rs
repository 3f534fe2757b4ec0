//! Layout of `insula.h` and `insula_node.h` as the Rust mirror has it.

use insula_abi::{
    Chunk, Chunks, Cpu, CpuOwner, Description, Device, Devices, Hello, Image, Machine, MemoryCopy,
    MemoryShow, MemoryUse, Name, Names, NodeCreate, NodeGrow, NodeInfo, NodeInterrupt,
    NodeRecreate, NodeShare, NodeShrink, NodeStart, NodeStop, NodeSupervise, Pool, Reason, Request,
    ShareBy, State, ioctl,
};

use super::{Facts, structure, values};

pub(crate) fn structures() -> Facts {
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
            lowmem_total,
            lowmem_free,
            pool_total,
            pool_free,
            allocated,
            quarantined
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
        MemoryShow,
        "insula_memory_show",
        [chunks, count, source]
    );
    structure!(facts, MemoryUse, "insula_memory_use", [own, shown]);
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
            core_share,
            share_by
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
            reset,
            monitor
        ]
    );
    structure!(facts, NodeStop, "insula_node_stop", [reason, reserved]);
    structure!(
        facts,
        NodeInterrupt,
        "insula_node_interrupt",
        [index, vector]
    );
    structure!(
        facts,
        NodeSupervise,
        "insula_node_supervise",
        [keep_cpus, flags]
    );
    structure!(
        facts,
        NodeRecreate,
        "insula_node_recreate",
        [description, description_size, flags]
    );
    structure!(
        facts,
        NodeGrow,
        "insula_node_grow",
        [cpus, cpus_count, memory]
    );
    structure!(facts, NodeShare, "insula_node_share", [memory, flags]);
    structure!(
        facts,
        NodeShrink,
        "insula_node_shrink",
        [cpus, cpus_count, chunks]
    );
    structure!(
        facts,
        Device,
        "insula_device",
        [segment, bus, function, flags]
    );
    structure!(facts, Devices, "insula_devices", [devices, capacity, count]);
    facts
}

pub(crate) fn constants() -> Facts {
    let mut facts = Facts::new();
    values!(facts, {
        INSULA_MAGIC = insula_abi::MAGIC,
        INSULA_REVISION = insula_abi::REVISION,
        INSULA_NAME_MAX = insula_abi::NAME_MAX,
        INSULA_DESCRIPTION_MAX = insula_abi::DESCRIPTION_MAX,
        INSULA_NODE_CPUS_MAX = insula_abi::NODE_CPUS_MAX,
        INSULA_GRANULE = insula_abi::GRANULE,
        INSULA_WORKING_SET_MAX = insula_abi::WORKING_SET_MAX,
        INSULA_LOWMEM_LIMIT = insula_abi::LOWMEM_LIMIT,
        INSULA_NUMA_ANY = insula_abi::NUMA_ANY,
        INSULA_REQUEST_BLOCKS = insula_abi::REQUEST_BLOCKS,
        INSULA_SHARE_BY_INTERRUPT = ShareBy::INTERRUPT.0,
        INSULA_SHARE_BY_NMI = ShareBy::NMI.0,
        INSULA_SHARE_BY_VMM = ShareBy::VMM.0,
        INSULA_MACHINE_VIRTUALIZES = insula_abi::MACHINE_VIRTUALIZES,
        INSULA_MACHINE_VMX = insula_abi::MACHINE_VMX,
        INSULA_MACHINE_X2APIC = insula_abi::MACHINE_X2APIC,
        INSULA_NODE_SUPERVISED = insula_abi::NODE_SUPERVISED,
        INSULA_NODE_CPUS_KEPT = insula_abi::NODE_CPUS_KEPT,
        INSULA_NODE_RETIRED = insula_abi::NODE_RETIRED,
        INSULA_NODE_UNRESPONSIVE = insula_abi::NODE_UNRESPONSIVE,
        INSULA_NODE_CONFINED = insula_abi::NODE_CONFINED,
        INSULA_NODE_PAUSED = insula_abi::NODE_PAUSED,
        INSULA_RECREATE_UNLESS_RETIRED = insula_abi::RECREATE_UNLESS_RETIRED,
        INSULA_VECTOR_NMI = insula_abi::VECTOR_NMI,
        INSULA_DEVICE_IOMMU = insula_abi::DEVICE_IOMMU,
        INSULA_DEVICE_ATTACHED = insula_abi::DEVICE_ATTACHED,
        INSULA_DEVICE_RELAYED = insula_abi::DEVICE_RELAYED,
        INSULA_IOC = ioctl::IOC,
        INSULA_HELLO = ioctl::HELLO,
        INSULA_MACHINE = ioctl::MACHINE,
        INSULA_POOL_RESERVE = ioctl::POOL_RESERVE,
        INSULA_POOL_RELEASE = ioctl::POOL_RELEASE,
        INSULA_MEMORY_CREATE = ioctl::MEMORY_CREATE,
        INSULA_BASE_MEMORY = ioctl::BASE_MEMORY,
        INSULA_IMAGE_ADD = ioctl::IMAGE_ADD,
        INSULA_IMAGE_OPEN = ioctl::IMAGE_OPEN,
        INSULA_IMAGE_REMOVE = ioctl::IMAGE_REMOVE,
        INSULA_IMAGE_LIST = ioctl::IMAGE_LIST,
        INSULA_IMAGE_REPLACE = ioctl::IMAGE_REPLACE,
        INSULA_NODE_CREATE = ioctl::NODE_CREATE,
        INSULA_NODE_OPEN = ioctl::NODE_OPEN,
        INSULA_NODE_LIST = ioctl::NODE_LIST,
        INSULA_MEMORY_GROW = ioctl::MEMORY_GROW,
        INSULA_MEMORY_CHUNKS = ioctl::MEMORY_CHUNKS,
        INSULA_MEMORY_COPY = ioctl::MEMORY_COPY,
        INSULA_MEMORY_SHOW = ioctl::MEMORY_SHOW,
        INSULA_MEMORY_USE = ioctl::MEMORY_USE,
        INSULA_MEMORY_STORE_SET = ioctl::MEMORY_STORE_SET,
        INSULA_MEMORY_OWN_SET = ioctl::MEMORY_OWN_SET,
        INSULA_MEMORY_LIST_SET = ioctl::MEMORY_LIST_SET,
        INSULA_MEMORY_GIVE_SET = ioctl::MEMORY_GIVE_SET,
        INSULA_NODE_START = ioctl::NODE_START,
        INSULA_NODE_STOP = ioctl::NODE_STOP,
        INSULA_NODE_INFO = ioctl::NODE_INFO,
        INSULA_NODE_REMOVE = ioctl::NODE_REMOVE,
        INSULA_NODE_MEMORY = ioctl::NODE_MEMORY,
        INSULA_NODE_INTERRUPT = ioctl::NODE_INTERRUPT,
        INSULA_NODE_SUPERVISE = ioctl::NODE_SUPERVISE,
        INSULA_NODE_RETIRE = ioctl::NODE_RETIRE,
        INSULA_NODE_RECREATE = ioctl::NODE_RECREATE,
        INSULA_NODE_GROW = ioctl::NODE_GROW,
        INSULA_NODE_SHRINK = ioctl::NODE_SHRINK,
        INSULA_NODE_SHARE = ioctl::NODE_SHARE,
        INSULA_NODE_SHARED = ioctl::NODE_SHARED,
        INSULA_NODE_CONFINE = ioctl::NODE_CONFINE,
        INSULA_NODE_MONITOR = ioctl::NODE_MONITOR,
        INSULA_NODE_PAUSE = ioctl::NODE_PAUSE,
        INSULA_NODE_RESUME = ioctl::NODE_RESUME,
        INSULA_NODE_EXCHANGE_NAMES = ioctl::NODE_EXCHANGE_NAMES,
        INSULA_NODE_RENAME = ioctl::NODE_RENAME,
        INSULA_NODE_DEVICE_ADD = ioctl::NODE_DEVICE_ADD,
        INSULA_NODE_DEVICES = ioctl::NODE_DEVICES,
        INSULA_DESCRIPTION = ioctl::DESCRIPTION,
        INSULA_NODE_CHANNELS = ioctl::NODE_CHANNELS,
        INSULA_CHANNEL_OPEN = ioctl::CHANNEL_OPEN,
        INSULA_CHANNEL_RING = ioctl::CHANNEL_RING,
        INSULA_CHANNEL_EVENTFD = ioctl::CHANNEL_EVENTFD,
        INSULA_NODE_DELEGATION = ioctl::NODE_DELEGATION,
    });
    facts
}

pub(crate) fn enumerators() -> Facts {
    let mut facts = Facts::new();
    values!(facts, {
        INSULA_CPU_BASE = CpuOwner::BASE.0,
        INSULA_CPU_POOL = CpuOwner::POOL.0,
        INSULA_CPU_NODE = CpuOwner::NODE.0,
        INSULA_CPU_SHARED = CpuOwner::SHARED.0,
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
        INSULA_REASON_DEVICE_LOST = Reason::DEVICE_LOST.0,
        INSULA_REASON_VIOLATION = Reason::VIOLATION.0,
        INSULA_REASON_FINDING = Reason::FINDING.0,
    });
    facts
}
