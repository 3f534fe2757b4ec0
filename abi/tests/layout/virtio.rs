//! Layout of `insula_virtio.h` as the Rust mirror has it.

use insula_abi::virtio::{
    self, Blocks, Config, ConfigRange, DeviceInfo, DeviceList, DeviceRange, EventConfig,
    EventDevice, Features, Header, Ping, Shm, Status, Vqueue, VqueueIndex,
};

use super::{Facts, structure, values};

pub(crate) fn structures() -> Facts {
    let mut facts = Facts::new();
    structure!(
        facts,
        Header,
        "insula_virtio_header",
        [kind, id, device, token, size]
    );
    structure!(
        facts,
        DeviceRange,
        "insula_virtio_device_range",
        [first, count]
    );
    structure!(
        facts,
        DeviceList,
        "insula_virtio_device_list",
        [first, count, next]
    );
    structure!(facts, Ping, "insula_virtio_ping", [data]);
    structure!(
        facts,
        EventDevice,
        "insula_virtio_event_device",
        [device, state]
    );
    structure!(
        facts,
        DeviceInfo,
        "insula_virtio_device_info",
        [
            device_id,
            vendor_id,
            feature_bits,
            config_size,
            vqueues_max,
            admin_vqueue_first,
            admin_vqueues
        ]
    );
    structure!(facts, Blocks, "insula_virtio_blocks", [first, count]);
    structure!(facts, Features, "insula_virtio_features", [blocks, words]);
    structure!(
        facts,
        ConfigRange,
        "insula_virtio_config_range",
        [offset, size]
    );
    structure!(
        facts,
        Config,
        "insula_virtio_config",
        [generation, offset, size]
    );
    structure!(facts, Status, "insula_virtio_status", [status]);
    structure!(facts, VqueueIndex, "insula_virtio_vqueue_index", [index]);
    structure!(
        facts,
        Vqueue,
        "insula_virtio_vqueue",
        [index, size_max, size, event, descriptors, driver, device]
    );
    structure!(
        facts,
        Shm,
        "insula_virtio_shm",
        [index, reserved, size, start]
    );
    structure!(
        facts,
        EventConfig,
        "insula_virtio_event_config",
        [status, config]
    );
    facts
}

pub(crate) fn constants() -> Facts {
    let mut facts = Facts::new();
    values!(facts, {
        INSULA_VIRTIO_MESSAGE_MAX = virtio::MESSAGE_MAX,
        INSULA_VIRTIO_CONFIG_MAX = virtio::CONFIG_MAX,
        INSULA_VIRTIO_DEVICES_MAX = virtio::DEVICES_MAX,
        INSULA_VIRTIO_QUEUES_MAX = virtio::QUEUES_MAX,
        INSULA_VIRTIO_EVENTS_MAX = virtio::EVENTS_MAX,
        INSULA_VIRTIO_RESPONSE = virtio::RESPONSE,
        INSULA_VIRTIO_BUS = virtio::BUS,
        INSULA_VIRTIO_GET_DEVICES = virtio::bus::GET_DEVICES,
        INSULA_VIRTIO_PING = virtio::bus::PING,
        INSULA_VIRTIO_EVENT_DEVICE = virtio::bus::EVENT_DEVICE,
        INSULA_VIRTIO_GET_DEVICE_INFO = virtio::device::GET_DEVICE_INFO,
        INSULA_VIRTIO_GET_FEATURES = virtio::device::GET_FEATURES,
        INSULA_VIRTIO_SET_FEATURES = virtio::device::SET_FEATURES,
        INSULA_VIRTIO_GET_CONFIG = virtio::device::GET_CONFIG,
        INSULA_VIRTIO_SET_CONFIG = virtio::device::SET_CONFIG,
        INSULA_VIRTIO_GET_STATUS = virtio::device::GET_STATUS,
        INSULA_VIRTIO_SET_STATUS = virtio::device::SET_STATUS,
        INSULA_VIRTIO_GET_VQUEUE = virtio::device::GET_VQUEUE,
        INSULA_VIRTIO_SET_VQUEUE = virtio::device::SET_VQUEUE,
        INSULA_VIRTIO_RESET_VQUEUE = virtio::device::RESET_VQUEUE,
        INSULA_VIRTIO_GET_SHM = virtio::device::GET_SHM,
        INSULA_VIRTIO_EVENT_CONFIG = virtio::device::EVENT_CONFIG,
        INSULA_VIRTIO_DEVICE_READY = virtio::DEVICE_READY,
        INSULA_VIRTIO_DEVICE_REMOVED = virtio::DEVICE_REMOVED,
    });
    facts
}
