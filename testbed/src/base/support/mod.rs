//! Support of several scenarios: the command, the module and its device, the machine's resources,
//! load, and nodes.

pub(crate) mod applications;
pub(crate) mod device_servers;
pub(crate) mod hold;
pub(crate) mod insula_command;
pub(crate) mod insula_module;
pub(crate) mod kvm_guest;
pub(crate) mod last_look;
pub(crate) mod load;
pub(crate) mod nodes;
pub(crate) mod output_schema;
pub(crate) mod poll_rate;
pub(crate) mod raw_device;
pub(crate) mod resources;
pub(crate) mod spare;
pub(crate) mod supervisor_process;
pub(crate) mod terminal;
pub(crate) mod virtio_modules;
