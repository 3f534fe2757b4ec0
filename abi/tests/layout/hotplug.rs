//! Layout of `insula_hotplug.h` as the Rust mirror has it.

use insula_abi::hotplug::{HotplugKind, HotplugReply, HotplugRequest};

use super::{Facts, structure, values};

pub(crate) fn structures() -> Facts {
    let mut facts = Facts::new();
    structure!(
        facts,
        HotplugRequest,
        "insula_hotplug_request",
        [apic_id, reserved, start, size]
    );
    structure!(
        facts,
        HotplugReply,
        "insula_hotplug_reply",
        [error, reserved, memory_block]
    );
    facts
}

pub(crate) fn enumerators() -> Facts {
    let mut facts = Facts::new();
    values!(facts, {
        INSULA_HOTPLUG_QUERY = HotplugKind::QUERY.0,
        INSULA_HOTPLUG_CPU_ONLINE = HotplugKind::CPU_ONLINE.0,
        INSULA_HOTPLUG_CPU_OFFLINE = HotplugKind::CPU_OFFLINE.0,
        INSULA_HOTPLUG_MEMORY_ADD = HotplugKind::MEMORY_ADD.0,
        INSULA_HOTPLUG_MEMORY_REMOVE = HotplugKind::MEMORY_REMOVE.0,
    });
    facts
}
