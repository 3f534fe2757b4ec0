//! Layout of `insula_channel.h` as the Rust mirror has it.

use insula_abi::channel::{
    self, AreaHeader, ChannelEventfd, ChannelOpen, Channels, EndpointState, Endpoints, Events,
    Pages, Right, Ring, Rings, Slot,
};

use super::{Facts, structure, values};

pub(crate) fn structures() -> Facts {
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
        EndpointState,
        "insula_endpoint_state",
        [doorbell, session, open, reserved]
    );
    structure!(facts, Events, "insula_events", [pending, reserved]);
    structure!(
        facts,
        Endpoints,
        "insula_endpoints",
        [base, node, to_base, to_node]
    );
    structure!(facts, Rings, "insula_rings", [to_node, to_base]);
    structure!(facts, Channels, "insula_channels", [start, count, slots]);
    structure!(
        facts,
        ChannelEventfd,
        "insula_channel_eventfd",
        [event, ioeventfd, irqfd, reserved]
    );
    structure!(facts, ChannelOpen, "insula_channel_open", [index, slots]);
    structure!(
        facts,
        AreaHeader,
        "insula_area_header",
        [magic, revision, count, slots, node]
    );
    facts
}

pub(crate) fn constants() -> Facts {
    let mut facts = Facts::new();
    values!(facts, {
        INSULA_AREA_RESETS_BY_CALL = channel::AREA_RESETS_BY_CALL,
        INSULA_CHANNEL_MAGIC = channel::CHANNEL_MAGIC,
        INSULA_CHANNEL_REVISION = channel::CHANNEL_REVISION,
        INSULA_SLOT_BYTES = channel::SLOT_BYTES,
        INSULA_SLOTS_MIN = channel::SLOTS_MIN,
        INSULA_SLOTS_MAX = channel::SLOTS_MAX,
        INSULA_HEADER_SEQUENCE_MASK = channel::HEADER_SEQUENCE_MASK,
        INSULA_HEADER_SIZE_SHIFT = channel::HEADER_SIZE_SHIFT,
        INSULA_HEADER_PAGES_SHIFT = channel::HEADER_PAGES_SHIFT,
        INSULA_HEADER_KIND_SHIFT = channel::HEADER_KIND_SHIFT,
        INSULA_WAKE_ASLEEP = channel::WAKE_ASLEEP,
        INSULA_DOORBELL_VALID = channel::DOORBELL_VALID,
        INSULA_DOORBELL_FOREIGN = channel::DOORBELL_FOREIGN,
        INSULA_DOORBELL_APIC_SHIFT = channel::DOORBELL_APIC_SHIFT,
        INSULA_DOORBELL_VECTOR_MASK = channel::DOORBELL_VECTOR_MASK,
        INSULA_CHANNEL_RINGS = channel::CHANNEL_RINGS,
        INSULA_RINGS_SLOTS = channel::RINGS_SLOTS,
        INSULA_CHANNEL_HOTPLUG = channel::CHANNEL_HOTPLUG,
        INSULA_CHANNEL_GRANTS = channel::CHANNEL_GRANTS,
        INSULA_CHANNEL_VIRTIO = channel::CHANNEL_VIRTIO,
        INSULA_EVENTS = channel::EVENTS,
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

pub(crate) fn enumerators() -> Facts {
    let mut facts = Facts::new();
    values!(facts, {
        INSULA_GRANTED = Right::GRANTED.0,
        INSULA_UNTIL_REPLY = Right::UNTIL_REPLY.0,
        INSULA_MOVED = Right::MOVED.0,
    });
    facts
}
