//! Why cores are not available.

use insula_base::error::{Error, Kind};
use insula_base::units::CpuList;

fn refused(what: String) -> Error {
    Error::new(what).untouched()
}

/// An error about cores that a later attempt may get.
fn unavailable(what: String) -> Error {
    refused(what).with_kind(Kind::Unavailable)
}

pub(super) fn core_zero() -> Error {
    refused("core 0 is not available, the base boots and runs on it".into())
        .hint("choose other cores: `insula machine info` lists them")
}

pub(super) fn unknown(cpu: u32, there: CpuList) -> Error {
    refused(format!("there is no core {cpu}: the machine has {there}")).hint("choose one of these")
}

pub(super) fn twice(cpu: u32) -> Error {
    refused(format!("core {cpu} is listed twice")).hint("list each core once")
}

pub(super) fn owned(cpu: u32) -> Error {
    unavailable(format!("core {cpu} belongs to a node"))
        .hint("choose another, or stop that node: `insula machine info` shows which")
}

pub(super) fn offline(cpu: u32) -> Error {
    let online = format!("echo 1 | sudo tee /sys/devices/system/cpu/cpu{cpu}/online");
    unavailable(format!("core {cpu} is offline"))
        .hint(format!("choose another, or first `{online}`"))
}

pub(super) fn too_many(requested: u32, free: usize, there: usize) -> Error {
    unavailable(format!(
        "{requested} cores requested, {free} available (of {there}, excluding core 0 and nodes' \
         cores)"
    ))
    .hint("request fewer, or stop a node: `insula machine info` shows the owner of each core")
}

/// The number is not one of whole cores' threads.
pub(super) fn partial_core(requested: u32, threads: usize) -> Error {
    refused(format!(
        "{requested} threads are not a number of whole cores, each has {threads} hyper-threads"
    ))
    .hint(format!(
        "request a multiple of {threads}, or list single threads with --cpu-list"
    ))
}
