//! What endpoints there are, and on which cores their servers run.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use insula_abi::server::{ENDPOINT_NAME_MAX, EndpointInfo};
use zerocopy::IntoBytes;

use crate::hw::clock;
use crate::hw::cores;
use crate::hw::memory::room::has_room;
use crate::model::errno::Errno;
use crate::model::scheduling::CoreSet;
use crate::model::thread_handle::ThreadHandle;
use crate::syscall::message::handles::read_name;
use crate::syscall::scheduling::read_set;
use crate::task::endpoint_registry::{self, Listed, Server};
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
    let (all, listed) = endpoint_registry::list(most as usize);
    for (index, listed) in listed.into_iter().enumerate() {
        let info = info(&listed);
        let offset = (index * size_of::<EndpointInfo>()) as u64;
        let mut space = thread.process.space();
        space.write(at.wrapping_add(offset), info.as_bytes())?;
    }
    Ok(all as u64)
}

/// The process that serves an endpoint.
struct ServerProcess {
    process: Arc<Process>,
    endpoint: usize,
    /// All endpoints that it serves.
    own: Vec<usize>,
}

impl ServerProcess {
    /// Finds it; none if it has just ended.
    fn find(server: Server) -> Option<Self> {
        let process = process_table::find(server.process)?;
        let own = endpoint_registry::served_by(&process);
        Some(Self {
            process,
            endpoint: server.endpoint,
            own,
        })
    }

    /// Whether a thread of the process belongs to the endpoint: all do but those that serve another one of its.
    fn has(&self, thread: &ThreadHandle) -> bool {
        let served = thread.serves.endpoint();
        served == self.endpoint || !self.own.contains(&served)
    }

    /// Returns the number of its threads, their processor time in ticks, and the cores on which the first may run.
    fn threads(&self) -> (u32, u64, CoreSet) {
        let signals = self.process.signals();
        let threads = signals.handles().filter(|thread| self.has(thread));
        let (mut count, mut ticks, mut cores) = (0, 0, None);
        for thread in threads {
            count += 1;
            ticks += thread.cpu_ticks.load(Ordering::Relaxed);
            cores.get_or_insert_with(|| thread.cores().below(cores::up()));
        }
        // That of threads that have ended, too.
        let is_alone = count as usize == signals.handles().len();
        let of_process = self.process.cpu_ticks.load(Ordering::Relaxed);
        let ticks = if is_alone { of_process } else { ticks };
        (count, ticks, cores.unwrap_or_default())
    }
}

fn info(Listed { name, server, load }: &Listed) -> EndpointInfo {
    let mut padded = [0; ENDPOINT_NAME_MAX];
    padded[..name.len()].copy_from_slice(name);
    let server = server.and_then(ServerProcess::find);
    let threads = server.as_ref().map(ServerProcess::threads);
    let (threads, busy_ticks, cores) = threads.unwrap_or_default();
    EndpointInfo {
        name: padded,
        server: server.map_or(0, |server| server.process.pages().pid() as u32),
        threads,
        waiting: load.waiting as u32,
        queued: load.queued as u32,
        served: load.served as u32,
        reserved: 0,
        received: load.received,
        crossings: load.crossings,
        interrupts: load.interrupts,
        busy_ns: clock::ticks_to_ns(busy_ticks, clock::tsc_khz()),
        cores: cores.to_words(),
    }
}

/// Has the threads of a server run on some cores, but for those that serve another endpoint of its.
pub(in crate::syscall) fn place(
    thread: &mut Thread,
    [name, length, from, size, ..]: [u64; 6],
) -> Result<u64, Errno> {
    let name = read_name(&thread.process, (name, length), 0)?;
    let set: CoreSet = read_set(thread, size, from)?;
    let server = endpoint_registry::server_of(&name).and_then(ServerProcess::find);
    let server = server.ok_or(Errno::ENOENT)?;
    let signals = server.process.signals();
    for handle in signals.handles().filter(|thread| server.has(thread)) {
        handle.set_cores(set);
        cores::interrupt(handle.core.load(Ordering::Relaxed));
    }
    Ok(0)
}
