//! A disk's daemon at work on virtqueues in a file, which stands for a node's memory, with a driver
//! of this test's own.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use insula_abi::Chunk;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use vhost::VhostBackend;
use vm_memory::{Bytes, GuestAddress};
use vmm_sys_util::eventfd::EventFd;

use super::device::Virtqueue;
use super::disk::{LockedFile, connect};
use super::keeper::{Keeper, Kept, Programs, Served, Trouble};
use super::memory::NodeMemory;
use super::notes::DeviceNotes;
use super::storage_daemon::{DiskFile, DiskSpec};
use super::vhost::{Events, wire_up};
use crate::driver::CallError;

/// Where the node's memory is, and what lies there.
const START: u64 = 0x10_0000;
const SIZE: u64 = 0x10_0000;
const DESCRIPTORS: u64 = START;
const DRIVER: u64 = START + 0x4000;
const DEVICE: u64 = START + 0x5000;
const REQUESTS: u64 = START + 0x8000;
/// Memory that the node is given later, somewhere else.
const MORE: u64 = START + 8 * SIZE;
/// Entries of the virtqueue, more than there will be requests, so that its keeper can be late; and
/// requests at one time: each has three of them.
const ENTRIES: u16 = 1024;
const AT_ONCE: u16 = 16;
/// Each request writes a block.
const BLOCK: usize = 4096;
const BLOCKS: u64 = 600;
const KILL_EVERY: u64 = 100;
const PATIENCE: Duration = Duration::from_secs(30);
/// `VIRTIO_F_VERSION_1`
const FEATURES: u64 = 1 << 32;

/// Whom the driver signals.
#[derive(Default)]
struct Kicks(Mutex<Vec<(u32, EventFd)>>);

impl Events for Kicks {
    fn bind(&self, event: u32, kick: &EventFd, _call: &EventFd) -> Result<(), CallError> {
        let mut bound = self.0.lock().unwrap();
        bound.push((event, kick.try_clone().unwrap()));
        Ok(())
    }

    fn unbind(&self, event: u32) {
        self.0.lock().unwrap().retain(|(bound, _)| *bound != event);
    }
}

/// What the device's owner is told.
#[derive(Default)]
struct Told(Mutex<Vec<String>>);

impl Trouble for Told {
    fn complain(&self, text: &str) {
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
    /// The same with what the node is given later.
    grown: NodeMemory,
    events: Arc<Kicks>,
    told: Arc<Told>,
    file: DiskFile,
    notes: DeviceNotes,
    /// The daemon at work.
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
            events: Arc::default(),
            told: Arc::default(),
            file: DiskFile::find(&spec).unwrap(),
            notes: DeviceNotes::at(folder.join("notes")),
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

    /// A supervisor takes the disk into its care.
    fn keep(&self) -> Keeper {
        let events: Arc<dyn Events> = Arc::clone(&self.events) as _;
        let queues = vec![Self::queue()];
        let (file, daemon) = (self.locked(), Arc::clone(&self.daemon));
        let served = self.served();
        let start = move || {
            let connected = connect(&file, FEATURES, &Arc::default(), &served)?;
            *daemon.lock().unwrap() = connected.id();
            Ok(connected)
        };
        let kept = Kept {
            served: self.served(),
            memory: self.memory.clone(),
            features: FEATURES,
            wires: wire_up(&self.memory, &events, &queues).unwrap(),
            queues,
        };
        let programs = Programs {
            first: Some(start().unwrap()),
            start: Box::new(start),
            follow: true,
        };
        Keeper::begin(kept, programs).unwrap()
    }

    fn locked(&self) -> LockedFile {
        LockedFile::new(self.file.clone())
    }

    fn served(&self) -> Served {
        Served {
            name: "disk".into(),
            notes: self.notes.clone(),
            trouble: Arc::clone(&self.told) as _,
        }
    }

    fn kill_daemon(&self) {
        let id = *self.daemon.lock().unwrap();
        kill(Pid::from_raw(id.try_into().unwrap()), Signal::SIGKILL).unwrap();
    }

    fn kick(&self) {
        for (_, kick) in self.events.0.lock().unwrap().iter() {
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
    answered: u64,
    /// Where its requests lie.
    requests: u64,
}

impl<'a> Driver<'a> {
    fn new(machine: &'a Machine) -> Self {
        Self {
            machine,
            available: 0,
            used: 0,
            free: (0..AT_ONCE).collect(),
            answered: 0,
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
    fn ask(&mut self, block: u64) {
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

    /// Takes an answer, to a request that has none yet.
    fn take_answer(&mut self) {
        let began = Instant::now();
        while self.get(DEVICE + 2) == self.used {
            assert!(began.elapsed() < PATIENCE, "{:?}", self.machine.told.0);
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
        self.answered += 1;
    }

    /// As many requests at once as there can be.
    fn write(&mut self, blocks: std::ops::Range<u64>, mut before: impl FnMut(u64)) {
        for block in blocks {
            if self.free.is_empty() {
                self.take_answer();
            }
            before(block);
            self.ask(block);
        }
    }

    fn take_all(&mut self) {
        while self.free.len() < usize::from(AT_ONCE) {
            self.take_answer();
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
    let keeper = machine.keep();
    let mut driver = Driver::new(&machine);
    driver.write(0..BLOCKS, |block| {
        if block % KILL_EVERY == KILL_EVERY / 2 {
            machine.kill_daemon();
        }
    });
    driver.take_all();
    assert_eq!(driver.answered, BLOCKS, "each request has one answer");
    assert_written(&machine);
    let told = std::mem::take(&mut *machine.told.0.lock().unwrap());
    let goes_on = told.iter().filter(|text| text.contains("goes on"));
    assert!(goes_on.count() >= 3, "{told:?}");
    assert!(
        !told.iter().any(|text| text.starts_with("lost")),
        "{told:?}"
    );
    drop(keeper);
    let id = *machine.daemon.lock().unwrap();
    assert!(!fs::exists(format!("/proc/{id}")).unwrap(), "it has ended");
}

/// The daemon reaches what the node is given while it works, nobody having to start another, and does
/// so no more once that has gone back: then a request that lies there is the daemon's end.
#[test]
fn disk_goes_on_in_memory_that_came_later() {
    let folder = tempfile::tempdir().unwrap();
    let machine = Machine::new(folder.path());
    let keeper = machine.keep();
    let daemon = *machine.daemon.lock().unwrap();
    let mut driver = Driver::new(&machine);
    driver.write(0..BLOCKS, |block| {
        if block == BLOCKS / 3 {
            keeper.change_memory(machine.grown.clone()).unwrap();
        }
    });
    driver.take_all();
    driver.requests = MORE;
    driver.write(0..BLOCKS, |_| {});
    driver.take_all();
    driver.requests = REQUESTS;
    driver.write(0..BLOCKS, |block| {
        if block == BLOCKS / 3 {
            keeper.change_memory(machine.memory.clone()).unwrap();
        }
    });
    driver.take_all();
    assert_eq!(driver.answered, 3 * BLOCKS, "each request has one answer");
    assert_eq!(
        *machine.daemon.lock().unwrap(),
        daemon,
        "{:?}",
        machine.told.0
    );
    driver.requests = MORE;
    driver.write(0..1, |_| {});
    let began = Instant::now();
    while *machine.daemon.lock().unwrap() == daemon {
        assert!(began.elapsed() < PATIENCE, "what went back is reached");
        thread::yield_now();
    }
}

/// Daemons that are killed while the memory changes are followed by those that know.
#[test]
fn disk_has_the_memory_also_when_its_daemon_is_killed_meanwhile() {
    let folder = tempfile::tempdir().unwrap();
    let machine = Machine::new(folder.path());
    let keeper = machine.keep();
    let mut driver = Driver::new(&machine);
    driver.write(0..1, |_| {});
    driver.take_all();
    machine.kill_daemon();
    keeper.change_memory(machine.grown.clone()).unwrap();
    driver.requests = MORE;
    driver.write(0..BLOCKS, |_| {});
    driver.take_all();
    assert_eq!(driver.answered, BLOCKS + 1);
    assert_written(&machine);
}

/// One supervisor after the other: what the first knew comes from its notes.
#[test]
fn disk_goes_on_with_the_next_supervisor() {
    let folder = tempfile::tempdir().unwrap();
    let machine = Machine::new(folder.path());
    let mut driver = Driver::new(&machine);
    for part in 0..BLOCKS / KILL_EVERY {
        let keeper = machine.keep();
        driver.write(part * KILL_EVERY..(part + 1) * KILL_EVERY, |_| {});
        // The driver is left with what it has asked for, and asks for no more.
        drop(keeper);
    }
    let _keeper = machine.keep();
    driver.take_all();
    assert_eq!(driver.answered, BLOCKS, "each request has one answer");
    assert_written(&machine);
}

/// A disk whose file is not there for a while is told of, and works when the file is back.
#[test]
fn disk_waits_for_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let machine = Machine::new(folder.path());
    let _keeper = machine.keep();
    let mut driver = Driver::new(&machine);
    driver.write(0..1, |_| {});
    driver.take_all();
    let away = folder.path().join("away");
    fs::rename(&machine.file.path, &away).unwrap();
    machine.kill_daemon();
    driver.write(1..2, |_| {});
    let failed = |text: &String| text.contains("disk: Some(");
    let began = Instant::now();
    while !machine.told.0.lock().unwrap().iter().any(failed) {
        assert!(began.elapsed() < PATIENCE, "{:?}", machine.told.0);
        thread::yield_now();
    }
    fs::rename(&away, &machine.file.path).unwrap();
    driver.take_all();
    assert_eq!(driver.answered, 2);
    let told = machine.told.0.lock().unwrap();
    // In its own words, which are not to be lost.
    assert!(
        told.iter().any(|text| text.contains("No such file")),
        "{told:?}"
    );
}

/// A daemon that stands still, as one whose storage does not answer, holds nobody up for long.
#[test]
fn daemon_that_does_not_answer_is_ended() {
    let folder = tempfile::tempdir().unwrap();
    let machine = Machine::new(folder.path());
    let config = Arc::default();
    let daemon = connect(&machine.locked(), FEATURES, &config, &machine.served()).unwrap();
    let id = Pid::from_raw(daemon.id().try_into().unwrap());
    kill(id, Signal::SIGSTOP).unwrap();
    let began = Instant::now();
    let error = daemon.within(Duration::from_millis(100), || {
        let features = daemon.front_end.get_features();
        features.map_err(super::vhost::failed("asking it"))
    });
    assert!(error.unwrap_err().to_string().contains("did not answer"));
    assert!(machine.notes.lock().is_err(), "it may still write");
    drop(daemon);
    assert!(began.elapsed() < PATIENCE);
    machine.notes.lock().expect("nobody serves it any more");
}

/// What the daemon would follow out of the node's memory does not reach it.
#[test]
fn virtqueues_outside_the_nodes_memory_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let machine = Machine::new(folder.path());
    let events: Arc<dyn Events> = Arc::clone(&machine.events) as _;
    let refused = |change: &dyn Fn(&mut Virtqueue)| {
        let mut queue = Machine::queue();
        change(&mut queue);
        let queues = [Machine::queue(), queue];
        assert!(wire_up(&machine.memory, &events, &queues).is_err());
        assert!(machine.events.0.lock().unwrap().is_empty(), "nothing stays");
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
fn disk_tells_what_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let machine = Machine::new(folder.path());
    let config = Arc::default();
    let daemon = connect(&machine.locked(), FEATURES, &config, &machine.served()).unwrap();
    let config = config.lock().unwrap().clone().unwrap();
    let offered = daemon.front_end.get_features().unwrap();
    assert_ne!(offered & FEATURES, 0);
    assert_eq!(offered & 1 << 5, 0, "it can be written to");
    let sectors = u64::from_le_bytes(config[..8].try_into().unwrap());
    assert_eq!(sectors, BLOCKS * BLOCK as u64 / 512);
    daemon.end();
}

/// Nobody waits for storage that does not answer but one thread, and what it answers at last is used. A pipe
/// that nobody writes to lets an open wait as such storage does.
#[test]
fn storage_that_does_not_answer_holds_nobody_up() {
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
        let error = file.hold(LIMIT).err().unwrap().to_string();
        assert!(error.contains("does not answer"), "{error}");
        assert!(began.elapsed() < PATIENCE);
    }
    let before = threads();
    file.hold(LIMIT).err().unwrap();
    assert!(threads() <= before, "one more thread for each try");
    // It answers.
    let _writer = File::options().write(true).open(&path).unwrap();
    drop(file.hold(PATIENCE).unwrap());
}
