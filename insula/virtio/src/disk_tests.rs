//! A disk's daemon serving virtqueues in a file, which stands for a node's memory, with a driver in
//! this test.

mod drain;
mod machine;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use insula_node::attachment::DiskFile;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use vhost::VhostBackend;

use self::machine::{
    BLOCK, BLOCKS, Driver, FEATURES, KILL_EVERY, MORE, Machine, REQUESTS, SIZE, START, TIMEOUT,
};
use super::device::Virtqueue;
use super::disk::connect;
use super::locked_file::LockedFile;
use super::vhost::{EventfdBinder, bind_notifiers};

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
        base: None,
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
