//! A node's memory in a file, a disk's daemon that serves it, and a driver.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use insula_abi::Chunk;
use insula_driver::CallError;
use insula_node::attachment::{DiskFile, DiskSpec};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use vm_memory::{Bytes, GuestAddress};
use vmm_sys_util::eventfd::EventFd;

use crate::checkpoint::DeviceCheckpoint;
use crate::device::Virtqueue;
use crate::disk::connect;
use crate::locked_file::LockedFile;
use crate::memory::NodeMemory;
use crate::monitor::{ActiveDevice, BackendLauncher, DeviceContext, DeviceEvents, Monitor};
use crate::vhost::{EventfdBinder, bind_notifiers};

/// The node's memory and its layout.
pub(super) const START: u64 = 0x10_0000;
pub(super) const SIZE: u64 = 0x10_0000;
pub(super) const DESCRIPTORS: u64 = START;
pub(super) const DRIVER: u64 = START + 0x4000;
pub(super) const DEVICE: u64 = START + 0x5000;
pub(super) const REQUESTS: u64 = START + 0x8000;
/// Memory that is added to the node later.
pub(super) const MORE: u64 = START + 8 * SIZE;
/// Entries of the virtqueue, many enough that the monitor may be late, and requests at a time, of
/// three entries each.
pub(super) const ENTRIES: u16 = 1024;
pub(super) const AT_ONCE: u16 = 16;
/// Each request writes a block.
pub(super) const BLOCK: usize = 4096;
pub(super) const BLOCKS: u64 = 600;
pub(super) const KILL_EVERY: u64 = 100;
pub(super) const TIMEOUT: Duration = Duration::from_secs(30);
/// `VIRTIO_F_VERSION_1`
pub(super) const FEATURES: u64 = 1 << 32;

/// The bound kick eventfds.
#[derive(Default)]
pub(super) struct Kicks(pub(super) Mutex<Vec<(u32, EventFd)>>);

impl EventfdBinder for Kicks {
    fn bind(&self, event: u32, kick: &EventFd, _call: &EventFd) -> Result<(), CallError> {
        let mut bound = self.0.lock().unwrap();
        bound.push((event, kick.try_clone().unwrap()));
        Ok(())
    }

    fn unbind(&self, event: u32) {
        self.0.lock().unwrap().retain(|(bound, _)| *bound != event);
    }
}

/// The reported device events.
#[derive(Default)]
pub(super) struct Reports(pub(super) Mutex<Vec<String>>);

impl DeviceEvents for Reports {
    fn report(&self, text: &str) {
        self.0.lock().unwrap().push(text.into());
    }

    fn device_lost(&self, text: &str) {
        self.0.lock().unwrap().push(format!("lost: {text}"));
    }

    fn set_failure(&self, device: &str, why: Option<&str>) {
        let text = format!("{device}: {why:?}");
        self.0.lock().unwrap().push(text);
    }
}

pub(super) struct Machine {
    pub(super) memory: NodeMemory,
    /// The memory with what is added later.
    pub(super) grown: NodeMemory,
    pub(super) binder: Arc<Kicks>,
    pub(super) reported: Arc<Reports>,
    pub(super) file: DiskFile,
    pub(super) checkpoint: DeviceCheckpoint,
    /// Process id of the daemon.
    pub(super) daemon: Arc<Mutex<u32>>,
    /// Whether the node is a copy.
    pub(super) is_copy: bool,
}

impl Machine {
    pub(super) fn new(folder: &Path) -> Self {
        let file = tempfile::tempfile_in(folder).unwrap();
        file.set_len(2 * SIZE).unwrap();
        let chunks = [START, MORE].map(|start| Chunk { start, size: SIZE });
        let map = |chunks: &[Chunk]| {
            let file = file.try_clone().unwrap();
            NodeMemory::map(file.into(), chunks, 1).unwrap()
        };
        let disk = folder.join("disk, of \"blocks\"");
        let bytes = BLOCKS * BLOCK as u64;
        File::create(&disk).unwrap().set_len(bytes).unwrap();
        let spec: DiskSpec = disk.to_str().unwrap().parse().unwrap();
        Self {
            memory: map(&chunks[..1]),
            grown: map(&chunks),
            binder: Arc::default(),
            reported: Arc::default(),
            file: DiskFile::find(&spec).unwrap(),
            checkpoint: DeviceCheckpoint::at(folder.join("checkpoint")),
            daemon: Arc::default(),
            is_copy: false,
        }
    }

    pub(super) fn queue() -> Virtqueue {
        Virtqueue {
            index: 0,
            size: ENTRIES,
            descriptors: DESCRIPTORS,
            driver: DRIVER,
            device: DEVICE,
            event: 3,
        }
    }

    /// Starts serving the disk, as a supervisor does.
    pub(super) fn start_monitor(&self) -> Monitor {
        let binder: Arc<dyn EventfdBinder> = Arc::clone(&self.binder) as _;
        let queues = vec![Self::queue()];
        let (file, daemon) = (self.locked(), Arc::clone(&self.daemon));
        let context = self.context();
        let start = move || {
            let connected = connect(&file, FEATURES, &Arc::default(), &context)?;
            *daemon.lock().unwrap() = connected.id();
            Ok(connected)
        };
        let device = ActiveDevice {
            context: self.context(),
            memory: self.memory.clone(),
            features: FEATURES,
            notifiers: bind_notifiers(&self.memory, &binder, &queues).unwrap(),
            queues,
        };
        let launcher = BackendLauncher {
            first: Some(start().unwrap()),
            start: Box::new(start),
            restartable: true,
        };
        Monitor::start(device, launcher).unwrap()
    }

    pub(super) fn locked(&self) -> LockedFile {
        LockedFile::new(self.file.clone())
    }

    pub(super) fn context(&self) -> DeviceContext {
        DeviceContext {
            name: "disk".into(),
            checkpoint: self.checkpoint.clone(),
            is_copy: self.is_copy,
            device_events: Arc::clone(&self.reported) as _,
        }
    }

    pub(super) fn kill_daemon(&self) {
        self.signal_daemon(Signal::SIGKILL);
    }

    /// Has the daemon do nothing, as one whose storage hangs.
    pub(super) fn stop_daemon(&self) {
        self.signal_daemon(Signal::SIGSTOP);
    }

    fn signal_daemon(&self, signal: Signal) {
        let id = *self.daemon.lock().unwrap();
        kill(Pid::from_raw(id.try_into().unwrap()), signal).unwrap();
    }

    pub(super) fn kick(&self) {
        for (_, kick) in self.binder.0.lock().unwrap().iter() {
            kick.write(1).unwrap();
        }
    }
}

/// A driver that writes blocks, each once.
pub(super) struct Driver<'a> {
    pub(super) machine: &'a Machine,
    pub(super) available: u16,
    pub(super) used: u16,
    pub(super) free: BTreeSet<u16>,
    pub(super) completed: u64,
    /// Address of its requests.
    pub(super) requests: u64,
}

impl<'a> Driver<'a> {
    pub(super) fn new(machine: &'a Machine) -> Self {
        Self {
            machine,
            available: 0,
            used: 0,
            free: (0..AT_ONCE).collect(),
            completed: 0,
            requests: REQUESTS,
        }
    }

    pub(super) fn put<T: vm_memory::ByteValued>(&self, place: u64, value: T) {
        let memory = self.machine.grown.guest();
        memory.write_obj(value, GuestAddress(place)).unwrap();
    }

    pub(super) fn get(&self, place: u64) -> u16 {
        let memory = self.machine.memory.guest();
        memory.read_obj(GuestAddress(place)).unwrap()
    }

    pub(super) fn submit(&mut self, block: u64) {
        self.publish(block);
        self.machine.kick();
    }

    /// Makes a request available, and does not notify the daemon yet: header, data and status, in three
    /// descriptors.
    pub(super) fn publish(&mut self, block: u64) {
        let place = self.free.pop_first().unwrap();
        let (head, request) = (place * 3, self.requests + u64::from(place) * 0x2000);
        self.put(request, 1_u64);
        self.put(request + 8, block * 8);
        self.put(request + 16, 0xff_u8);
        let data = vec![block as u8 ^ 0x5a; BLOCK];
        let memory = self.machine.grown.guest();
        memory
            .write_slice(&data, GuestAddress(request + 0x1000))
            .unwrap();
        let parts = [
            (request, 16_u32, 1_u16),
            (request + 0x1000, BLOCK as u32, 1),
            (request + 16, 1, 2),
        ];
        for (number, (address, size, flags)) in (head..).zip(parts) {
            let at = DESCRIPTORS + 16 * u64::from(number);
            self.put(at, address);
            self.put(at + 8, size);
            self.put(at + 12, flags);
            self.put(at + 14, number + 1);
        }
        self.put(DRIVER + 4 + 2 * u64::from(self.available % ENTRIES), head);
        self.available = self.available.wrapping_add(1);
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        self.put(DRIVER + 2, self.available);
    }

    /// Takes a completion of a request in flight.
    pub(super) fn take_completion(&mut self) {
        let began = Instant::now();
        while self.get(DEVICE + 2) == self.used {
            assert!(began.elapsed() < TIMEOUT, "{:?}", self.machine.reported.0);
            thread::yield_now();
        }
        let head = self.get(DEVICE + 4 + 8 * u64::from(self.used % ENTRIES));
        self.used = self.used.wrapping_add(1);
        let place = head / 3;
        assert!(self.free.insert(place), "request {place} came back twice");
        let status = self.requests + u64::from(place) * 0x2000 + 16;
        let memory = self.machine.grown.guest();
        let status: u8 = memory.read_obj(GuestAddress(status)).unwrap();
        assert_eq!(status, 0);
        self.completed += 1;
    }

    /// Writes blocks with as many requests in flight as possible.
    pub(super) fn write(&mut self, blocks: std::ops::Range<u64>, mut before: impl FnMut(u64)) {
        for block in blocks {
            if self.free.is_empty() {
                self.take_completion();
            }
            before(block);
            self.submit(block);
        }
    }

    pub(super) fn take_all(&mut self) {
        while self.free.len() < usize::from(AT_ONCE) {
            self.take_completion();
        }
    }
}
