//! What endpoints there are, and on which cores their servers run.

use core::sync::atomic::Ordering;

use insula_abi::server::{ENDPOINT_CORES_WORDS, ENDPOINT_NAME_MAX, EndpointInfo};
use zerocopy::IntoBytes;

use crate::hw::clock;
use crate::hw::cores;
use crate::hw::memory::room::has_room;
use crate::model::endpoint::EndpointLoad;
use crate::model::errno::Errno;
use crate::model::scheduling::CoreSet;
use crate::syscall::message::handles::read_name;
use crate::syscall::scheduling::read_set;
use crate::task::endpoint;
use crate::task::process::Process;
use crate::task::process_table;
use crate::task::thread::Thread;

/// Most endpoints that one call lists: the core does nothing else meanwhile.
const LISTED_MAX: u64 = 256;

/// Writes what endpoints there are. Returns their number.
pub(in crate::syscall) fn list(
    thread: &mut Thread,
    [at, count, ..]: [u64; 6],
) -> Result<u64, Errno> {
    let most = count.min(LISTED_MAX);
    has_room(most * size_of::<EndpointInfo>() as u64)?;
    let (all, listed) = endpoint::list(most as usize);
    for (index, (name, server, load)) in listed.into_iter().enumerate() {
        let info = info(&name, server.and_then(process_table::find).as_deref(), load);
        let offset = (index * size_of::<EndpointInfo>()) as u64;
        let mut space = thread.process.space();
        space.write(at.wrapping_add(offset), info.as_bytes())?;
    }
    Ok(all as u64)
}

fn info(name: &[u8], server: Option<&Process>, load: EndpointLoad) -> EndpointInfo {
    let mut padded = [0; ENDPOINT_NAME_MAX];
    padded[..name.len()].copy_from_slice(name);
    let (threads, cores) = server.map_or((0, [0; ENDPOINT_CORES_WORDS]), threads);
    let busy_ticks = server.map_or(0, |server| server.cpu_ticks.load(Ordering::Relaxed));
    EndpointInfo {
        name: padded,
        server: server.map_or(0, |server| server.pages().pid() as u32),
        threads,
        waiting: load.waiting as u32,
        queued: load.queued as u32,
        served: load.served as u32,
        reserved: 0,
        received: load.received,
        crossings: load.crossings,
        interrupts: load.interrupts,
        busy_ns: clock::ticks_to_ns(busy_ticks, clock::tsc_khz()),
        cores,
    }
}

/// Returns the number of a process's threads, and the cores on which the first may run.
fn threads(process: &Process) -> (u32, [u64; ENDPOINT_CORES_WORDS]) {
    let signals = process.signals();
    let mut handles = signals.handles();
    let count = handles.len() as u32;
    let first = handles.next();
    let set = first.map(|handle| handle.cores().below(cores::up()).to_words());
    (count, set.unwrap_or_default())
}

/// Has all threads of a server run on some cores.
pub(in crate::syscall) fn place(
    thread: &mut Thread,
    [name, length, from, size, ..]: [u64; 6],
) -> Result<u64, Errno> {
    let name = read_name(&thread.process, (name, length), 0)?;
    let set: CoreSet = read_set(thread, size, from)?;
    let server = endpoint::server_of(&name).and_then(process_table::find);
    let server = server.ok_or(Errno::ENOENT)?;
    for handle in server.signals().handles() {
        handle.set_cores(set);
        cores::interrupt(handle.core.load(Ordering::Relaxed));
    }
    Ok(0)
}
