//! A disk's daemon serving virtqueues in a file, which stands for a node's memory, with a driver in
//! this test.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use insula_abi::Chunk;
use insula_driver::CallError;
use insula_node::attachment::{DiskFile, DiskSpec};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use vhost::VhostBackend;
use vm_memory::{Bytes, GuestAddress};
use vmm_sys_util::eventfd::EventFd;

use super::checkpoint::DeviceCheckpoint;
use super::device::Virtqueue;
use super::disk::{LockedFile, connect};
use super::memory::NodeMemory;
use super::monitor::{ActiveDevice, BackendLauncher, DeviceContext, DeviceEvents, Monitor};
use super::vhost::{EventfdBinder, bind_notifiers};

/// The node's memory and its layout.
const START: u64 = 0x10_0000;
const SIZE: u64 = 0x10_0000;
const DESCRIPTORS: u64 = START;
const DRIVER: u64 = START + 0x4000;
const DEVICE: u64 = START + 0x5000;
const REQUESTS: u64 = START + 0x8000;
/// Memory that is added to the node later.
const MORE: u64 = START + 8 * SIZE;
/// Entries of the virtqueue, many enough that the monitor may be late, and requests at a time, of
/// three entries each.
const ENTRIES: u16 = 1024;
const AT_ONCE: u16 = 16;
/// Each request writes a block.
const BLOCK: usize = 4096;
const BLOCKS: u64 = 600;
const KILL_EVERY: u64 = 100;
const TIMEOUT: Duration = Duration::from_secs(30);
/// `VIRTIO_F_VERSION_1`
const FEATURES: u64 = 1 << 32;

/// The bound kick eventfds.
#[derive(Default)]
struct Kicks(Mutex<Vec<(u32, EventFd)>>);

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
struct Reports(Mutex<Vec<String>>);

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

struct Machine {
    memory: NodeMemory,
    /// The memory with what is added later.
    grown: NodeMemory,
    binder: Arc<Kicks>,
    reported: Arc<Reports>,
    file: DiskFile,
    checkpoint: DeviceCheckpoint,
    /// Process id of the daemon.
    daemon: Arc<Mutex<u32>>,
}

impl Machine {
    fn new(folder: &Path) -> Self {
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
        }
    }

    fn queue() -> Virtqueue {
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
    fn start_monitor(&self) -> Monitor {
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

    fn locked(&self) -> LockedFile {
        LockedFile::new(self.file.clone())
    }

    fn context(&self) -> DeviceContext {
        DeviceContext {
            name: "disk".into(),
            checkpoint: self.checkpoint.clone(),
            device_events: Arc::clone(&self.reported) as _,
        }
    }

    fn kill_daemon(&self) {
        let id = *self.daemon.lock().unwrap();
        kill(Pid::from_raw(id.try_into().unwrap()), Signal::SIGKILL).unwrap();
    }

    fn kick(&self) {
        for (_, kick) in self.binder.0.lock().unwrap().iter() {
            kick.write(1).unwrap();
        }
    }
}

/// A driver that writes blocks, each once.
struct Driver<'a> {
    machine: &'a Machine,
    available: u16,
    used: u16,
    free: BTreeSet<u16>,
    completed: u64,
    /// Address of its requests.
    requests: u64,
}

impl<'a> Driver<'a> {
    fn new(machine: &'a Machine) -> Self {
        Self {
            machine,
            available: 0,
            used: 0,
            free: (0..AT_ONCE).collect(),
            completed: 0,
            requests: REQUESTS,
        }
    }

    fn put<T: vm_memory::ByteValued>(&self, place: u64, value: T) {
        let memory = self.machine.grown.guest();
        memory.write_obj(value, GuestAddress(place)).unwrap();
    }

    fn get(&self, place: u64) -> u16 {
        let memory = self.machine.memory.guest();
        memory.read_obj(GuestAddress(place)).unwrap()
    }

    /// Header, data and status of a request, in three descriptors.
    fn submit(&mut self, block: u64) {
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
        self.machine.kick();
    }

    /// Takes a completion of a request in flight.
    fn take_completion(&mut self) {
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
    fn write(&mut self, blocks: std::ops::Range<u64>, mut before: impl FnMut(u64)) {
        for block in blocks {
            if self.free.is_empty() {
                self.take_completion();
            }
            before(block);
            self.submit(block);
        }
    }

    fn take_all(&mut self) {
        while self.free.len() < usize::from(AT_ONCE) {
            self.take_completion();
        }
    }
}

fn assert_written(machine: &Machine) {
    let file = File::open(&machine.file.path).unwrap();
    let mut bytes = vec![0; BLOCK];
    for block in 0..BLOCKS {
        file.read_exact_at(&mut bytes, block * BLOCK as u64)
            .unwrap();
        assert_eq!(bytes, vec![block as u8 ^ 0x5a; BLOCK], "block {block}");
    }
}

#[test]
fn disk_goes_on_when_its_daemon_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let machine = Machine::new(folder.path());
    let monitor = machine.start_monitor();
    let mut driver = Driver::new(&machine);
    driver.write(0..BLOCKS, |block| {
        if block % KILL_EVERY == KILL_EVERY / 2 {
            machine.kill_daemon();
        }
    });
    driver.take_all();
    assert_eq!(driver.completed, BLOCKS, "each request is completed once");
    assert_written(&machine);
    let reported = std::mem::take(&mut *machine.reported.0.lock().unwrap());
    let goes_on = reported.iter().filter(|text| text.contains("goes on"));
    assert!(goes_on.count() >= 3, "{reported:?}");
    assert!(
        !reported.iter().any(|text| text.starts_with("lost")),
        "{reported:?}"
    );
    drop(monitor);
    let id = *machine.daemon.lock().unwrap();
    assert!(!fs::exists(format!("/proc/{id}")).unwrap(), "it has ended");
}

/// The same daemon gets access to memory that is added, and loses it when it is removed: a request
/// that lies there makes it exit.
#[test]
fn disk_goes_on_in_memory_that_was_added() {
    let folder = tempfile::tempdir().unwrap();
    let machine = Machine::new(folder.path());
    let monitor = machine.start_monitor();
    let daemon = *machine.daemon.lock().unwrap();
    let mut driver = Driver::new(&machine);
    driver.write(0..BLOCKS, |block| {
        if block == BLOCKS / 3 {
            monitor.change_memory(machine.grown.clone()).unwrap();
        }
    });
    driver.take_all();
    driver.requests = MORE;
    driver.write(0..BLOCKS, |_| {});
    driver.take_all();
    driver.requests = REQUESTS;
    driver.write(0..BLOCKS, |block| {
        if block == BLOCKS / 3 {
            monitor.change_memory(machine.memory.clone()).unwrap();
        }
    });
    driver.take_all();
    assert_eq!(
        driver.completed,
        3 * BLOCKS,
        "each request is completed once"
    );
    assert_eq!(
        *machine.daemon.lock().unwrap(),
        daemon,
        "{:?}",
        machine.reported.0
    );
    driver.requests = MORE;
    driver.write(0..1, |_| {});
    let began = Instant::now();
    while *machine.daemon.lock().unwrap() == daemon {
        assert!(
            began.elapsed() < TIMEOUT,
            "removed memory is still accessed"
        );
        thread::yield_now();
    }
}

/// A daemon that replaces one killed during a memory change has the new memory.
#[test]
fn disk_has_new_memory_also_when_its_daemon_is_killed_meanwhile() {
    let folder = tempfile::tempdir().unwrap();
    let machine = Machine::new(folder.path());
    let monitor = machine.start_monitor();
    let mut driver = Driver::new(&machine);
    driver.write(0..1, |_| {});
    driver.take_all();
    machine.kill_daemon();
    monitor.change_memory(machine.grown.clone()).unwrap();
    driver.requests = MORE;
    driver.write(0..BLOCKS, |_| {});
    driver.take_all();
    assert_eq!(driver.completed, BLOCKS + 1);
    assert_written(&machine);
}

/// A following supervisor resumes from the checkpoint.
#[test]
fn disk_goes_on_with_the_next_supervisor() {
    let folder = tempfile::tempdir().unwrap();
    let machine = Machine::new(folder.path());
    let mut driver = Driver::new(&machine);
    for part in 0..BLOCKS / KILL_EVERY {
        let monitor = machine.start_monitor();
        driver.write(part * KILL_EVERY..(part + 1) * KILL_EVERY, |_| {});
        // The driver keeps its requests in flight, and adds none.
        drop(monitor);
    }
    let _monitor = machine.start_monitor();
    driver.take_all();
    assert_eq!(driver.completed, BLOCKS, "each request is completed once");
    assert_written(&machine);
}

/// A disk whose file is missing for a while is reported, and works when the file is back.
#[test]
fn disk_waits_for_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let machine = Machine::new(folder.path());
    let _monitor = machine.start_monitor();
    let mut driver = Driver::new(&machine);
    driver.write(0..1, |_| {});
    driver.take_all();
    let away = folder.path().join("away");
    fs::rename(&machine.file.path, &away).unwrap();
    machine.kill_daemon();
    driver.write(1..2, |_| {});
    let failed = |text: &String| text.contains("disk: Some(");
    let began = Instant::now();
    while !machine.reported.0.lock().unwrap().iter().any(failed) {
        assert!(began.elapsed() < TIMEOUT, "{:?}", machine.reported.0);
        thread::yield_now();
    }
    fs::rename(&away, &machine.file.path).unwrap();
    driver.take_all();
    assert_eq!(driver.completed, 2);
    let reported = machine.reported.0.lock().unwrap();
    // The daemon's own error is passed on.
    assert!(
        reported.iter().any(|text| text.contains("No such file")),
        "{reported:?}"
    );
}

/// A stopped daemon, as one whose storage hangs, is killed after a timeout.
#[test]
fn daemon_that_does_not_answer_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let machine = Machine::new(folder.path());
    let config = Arc::default();
    let daemon = connect(&machine.locked(), FEATURES, &config, &machine.context()).unwrap();
    let id = Pid::from_raw(daemon.id().try_into().unwrap());
    kill(id, Signal::SIGSTOP).unwrap();
    let began = Instant::now();
    let error = daemon.with_timeout(Duration::from_millis(100), || {
        let features = daemon.frontend.get_features();
        features.map_err(super::vhost::failed("asking it"))
    });
    assert!(error.unwrap_err().to_string().contains("did not answer"));
    assert!(machine.checkpoint.lock().is_err(), "it may still write");
    drop(daemon);
    assert!(began.elapsed() < TIMEOUT);
    machine.checkpoint.lock().expect("no backend is left");
}

/// Virtqueues outside the node's memory never reach the daemon.
#[test]
fn virtqueues_outside_the_nodes_memory_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let machine = Machine::new(folder.path());
    let binder: Arc<dyn EventfdBinder> = Arc::clone(&machine.binder) as _;
    let refused = |change: &dyn Fn(&mut Virtqueue)| {
        let mut queue = Machine::queue();
        change(&mut queue);
        let queues = [Machine::queue(), queue];
        assert!(bind_notifiers(&machine.memory, &binder, &queues).is_err());
        assert!(machine.binder.0.lock().unwrap().is_empty(), "nothing stays");
    };
    for outside in [
        0,
        START - 16,
        START + SIZE - 16,
        START + SIZE,
        u64::MAX - 15,
    ] {
        refused(&|queue| queue.descriptors = outside);
        refused(&|queue| queue.driver = outside);
        refused(&|queue| queue.device = outside);
    }
    refused(&|queue| queue.descriptors += 8);
    refused(&|queue| queue.driver += 1);
    refused(&|queue| queue.device += 2);
}

#[test]
fn daemon_reports_features_and_size() {
    let folder = tempfile::tempdir().unwrap();
    let machine = Machine::new(folder.path());
    let config = Arc::default();
    let daemon = connect(&machine.locked(), FEATURES, &config, &machine.context()).unwrap();
    let config = config.lock().unwrap().clone().unwrap();
    let offered = daemon.frontend.get_features().unwrap();
    assert_ne!(offered & FEATURES, 0);
    assert_eq!(offered & 1 << 5, 0, "it can be written to");
    let sectors = u64::from_le_bytes(config[..8].try_into().unwrap());
    assert_eq!(sectors, BLOCKS * BLOCK as u64 / 512);
    daemon.end();
}

/// Only one thread waits for hanging storage, and a late answer is used. Opening a pipe without a
/// writer blocks as such storage does.
#[test]
fn hanging_storage_blocks_one_thread_only() {
    const LIMIT: Duration = Duration::from_millis(100);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pipe");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let file = LockedFile::new(DiskFile {
        path: path.clone(),
        read_only: true,
        is_device: Some(false),
    });
    let threads = || fs::read_dir("/proc/self/task").unwrap().count();
    for _ in 0..3 {
        let began = Instant::now();
        let error = file.lock(LIMIT).err().unwrap().to_string();
        assert!(error.contains("does not answer"), "{error}");
        assert!(began.elapsed() < TIMEOUT);
    }
    let before = threads();
    file.lock(LIMIT).err().unwrap();
    assert!(threads() <= before, "one more thread for each try");
    // Now it answers.
    let _writer = File::options().write(true).open(&path).unwrap();
    drop(file.lock(TIMEOUT).unwrap());
}
