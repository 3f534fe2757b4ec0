//! Sockets of network servers, and who waits for them (protocol: `abi/include/insula_net.h`).
//!
//! This kernel knows what each socket is ready for: replies and announcements of its server say so. Who
//! waits for that is a handler, which its core polls when this changes.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use insula_abi::net::{operation, ready};

use crate::hw::cores::{self, CORES_MAX};
use crate::model::endpoint::Request;
use crate::model::readiness::Readiness;
use crate::task::endpoint::Handle;
use crate::task::server_handle;

/// No timeout of a socket's calls.
const FOREVER: u64 = u64::MAX;

/// A socket.
#[derive(Debug)]
pub(crate) struct Socket {
    /// Its server's endpoint.
    pub(crate) endpoint: Handle,
    /// By which the server knows it. None is ever used twice.
    pub(crate) handle: u64,
    /// Whether it is of streams, or else of datagrams.
    pub(crate) is_of_streams: bool,
    /// Whether its calls do not wait (`O_NONBLOCK`).
    pub(crate) is_nonblocking: AtomicBool,
    /// What it is ready for.
    pub(crate) readiness: Readiness,
    /// Its server has gone, and all that it had.
    is_gone: AtomicBool,
    /// How long calls wait that receive, and others, in ns (`SO_RCVTIMEO`, `SO_SNDTIMEO`).
    receive_timeout_ns: AtomicU64,
    send_timeout_ns: AtomicU64,
}

/// All sockets, by their handles.
static ALL: spin::Mutex<BTreeMap<u64, Weak<Socket>>> = spin::Mutex::new(BTreeMap::new());

impl Socket {
    /// Creates one that the server does not know yet.
    pub(crate) fn new(endpoint: &Handle, is_of_streams: bool, is_nonblocking: bool) -> Arc<Self> {
        let socket = Arc::new(Self {
            endpoint: endpoint.clone(),
            handle: server_handle::next(),
            is_of_streams,
            is_nonblocking: AtomicBool::new(is_nonblocking),
            readiness: Readiness::default(),
            is_gone: AtomicBool::new(false),
            receive_timeout_ns: AtomicU64::new(FOREVER),
            send_timeout_ns: AtomicU64::new(FOREVER),
        });
        ALL.lock().insert(socket.handle, Arc::downgrade(&socket));
        socket
    }

    /// Whether its server has gone.
    pub(crate) fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Acquire)
    }

    /// Whether its calls do not wait.
    pub(crate) fn is_nonblocking(&self) -> bool {
        self.is_nonblocking.load(Ordering::Relaxed)
    }

    fn timeout(&self, receives: bool) -> &AtomicU64 {
        match receives {
            true => &self.receive_timeout_ns,
            false => &self.send_timeout_ns,
        }
    }

    /// Returns how long calls wait that receive, or others, in ns.
    pub(crate) fn timeout_ns(&self, receives: bool) -> Option<u64> {
        match self.timeout(receives).load(Ordering::Relaxed) {
            FOREVER => None,
            timeout_ns => Some(timeout_ns),
        }
    }

    /// Sets that; 0 for any time.
    pub(crate) fn set_timeout_ns(&self, receives: bool, timeout_ns: u64) {
        let timeout_ns = if timeout_ns == 0 { FOREVER } else { timeout_ns };
        self.timeout(receives).store(timeout_ns, Ordering::Relaxed);
    }

    /// Sets what it is ready for, as its server says it.
    pub(crate) fn set_ready(&self, ready: u32, edges: u32) {
        // A reply may come after the end of its server.
        if !self.is_gone() && self.readiness.set(ready, edges) {
            wake_waiters();
        }
    }

    /// Takes it from its server, which has gone.
    fn end(&self) {
        self.is_gone.store(true, Ordering::Release);
        let all = ready::IN | ready::OUT | ready::ERROR | ready::HUP | ready::RDHUP;
        self.readiness.set(all, ready::IN);
    }
}

impl Drop for Socket {
    /// Releases it. A server that does not know it ignores that.
    fn drop(&mut self) {
        ALL.lock().remove(&self.handle);
        let words = [self.handle, 0, 0, 0, 0, 0];
        let request = Request::unanswered(operation::RELEASE, words);
        self.endpoint.post(Box::new(request));
    }
}

/// Takes over what a reply says of a socket.
pub(crate) fn note_reply(handle: u64, ready: u64) {
    let found = ALL.lock().get(&handle).and_then(Weak::upgrade);
    if let Some(socket) = found {
        socket.set_ready(ready as u32, 0);
    }
}

/// Takes over what a server announces of a socket.
pub(crate) fn announce(endpoint: &Handle, [handle, ready, edges, ..]: [u64; 6]) {
    let found = ALL.lock().get(&handle).and_then(Weak::upgrade);
    if let Some(socket) = found
        && socket.endpoint.id() == endpoint.id()
    {
        socket.set_ready(ready as u32, edges as u32);
    }
}

/// Ends all sockets of an endpoint whose server has gone.
pub(crate) fn end_all(endpoint: usize) {
    let all: Vec<_> = ALL.lock().values().filter_map(Weak::upgrade).collect();
    let ended = all.iter().filter(|socket| socket.endpoint.id() == endpoint);
    let mut is_any = false;
    for socket in ended {
        socket.end();
        is_any = true;
    }
    if is_any {
        wake_waiters();
    }
}

/// How many handlers of each core wait for sockets.
static WAITERS: [AtomicU32; CORES_MAX] = [const { AtomicU32::new(0) }; CORES_MAX];

/// A handler that waits for sockets: its core polls it when one has changed.
#[derive(Debug)]
pub(crate) struct Waiter {
    core: u32,
}

impl Waiter {
    /// Registers a handler of this core. After that it looks at its sockets.
    pub(crate) fn register() -> Self {
        let core = cores::number();
        WAITERS[core as usize % CORES_MAX].fetch_add(1, Ordering::SeqCst);
        Self { core }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        WAITERS[self.core as usize % CORES_MAX].fetch_sub(1, Ordering::SeqCst);
    }
}

/// Has all cores with handlers that wait for sockets poll them.
fn wake_waiters() {
    let own = cores::number();
    for core in 0..cores::up() {
        if WAITERS[core as usize % CORES_MAX].load(Ordering::SeqCst) == 0 {
            continue;
        }
        match core == own {
            true => cores::mark_interrupted(),
            false => cores::interrupt(core),
        }
    }
}
