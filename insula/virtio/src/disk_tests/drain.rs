//! What a snapshot of a node relies on: no request of the driver, which is paused, is left.

use std::fs::{self, File};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use insula_base::storage::Identity;

use super::machine::{Driver, FEATURES, Machine, TIMEOUT};
use super::{assert_written, connect};
use crate::drain::Drain;

/// Identity of a disk's file by its path.
fn at_path(machine: &Machine) -> Identity {
    Identity::of_file(&File::open(&machine.file.path).unwrap()).unwrap()
}

/// The node may have been paused after it made a request, and before it notified the daemon.
#[test]
fn a_request_that_nobody_has_been_notified_of_is_completed() {
    let folder = tempfile::tempdir().unwrap();
    let machine = Machine::new(folder.path());
    let monitor = machine.start_monitor();
    let mut driver = Driver::new(&machine);
    // The daemon has seen its start, and waits.
    driver.write(0..1, |_| {});
    driver.take_all();
    driver.publish(1);
    driver.publish(2);
    let done = monitor.drain().unwrap();
    let drain = Drain::new("disk".into(), at_path(&machine), Some(done));
    drain.wait(Instant::now() + TIMEOUT).unwrap();
    driver.take_all();
    assert_eq!(driver.completed, 3);
    monitor.drain().unwrap().recv_timeout(TIMEOUT).unwrap();
}

/// All of them are, also when the daemon is killed meanwhile.
#[test]
fn requests_are_completed_by_the_next_daemon() {
    let folder = tempfile::tempdir().unwrap();
    let machine = Machine::new(folder.path());
    let monitor = machine.start_monitor();
    let mut driver = Driver::new(&machine);
    driver.write(0..super::BLOCKS, |_| {});
    machine.kill_daemon();
    monitor.drain().unwrap().recv_timeout(TIMEOUT).unwrap();
    driver.take_all();
    assert_written(&machine);
}

/// A disk that does not answer holds nobody up for longer than its deadline, and one that is stopped is
/// noticed at once.
#[test]
fn a_drain_ends_at_its_deadline_or_with_the_device() {
    let folder = tempfile::tempdir().unwrap();
    let machine = Machine::new(folder.path());
    let monitor = machine.start_monitor();
    let mut driver = Driver::new(&machine);
    machine.stop_daemon();
    driver.publish(0);
    let drain = || {
        Drain::new(
            "disk".into(),
            at_path(&machine),
            Some(monitor.drain().unwrap()),
        )
    };
    let began = Instant::now();
    let late = drain()
        .wait(began + Duration::from_millis(200))
        .unwrap_err();
    assert!(late.to_string().contains("does not complete"), "{late}");
    assert!(began.elapsed() < TIMEOUT);
    let done = monitor.drain().unwrap();
    machine.kill_daemon();
    drop(monitor);
    match done.recv_timeout(TIMEOUT) {
        // The next daemon may have been faster.
        Ok(()) | Err(RecvTimeoutError::Disconnected) => {}
        Err(RecvTimeoutError::Timeout) => panic!("nobody tells that the device has ended"),
    }
}

/// A supervisor that is killed before it has written the first record of a copy's disk leaves an empty
/// file, and requests that no daemon has seen.
#[test]
fn a_copys_first_requests_survive_a_supervisor_without_record() {
    let folder = tempfile::tempdir().unwrap();
    let mut machine = Machine::new(folder.path());
    let mut driver = Driver::new(&machine);
    let original = machine.start_monitor();
    driver.write(0..4, |_| {});
    driver.take_all();
    drop(original);
    machine.checkpoint.remove();
    let (available, used, completed) = (driver.available, driver.used, driver.completed);
    machine.is_copy = true;
    machine.checkpoint.open().unwrap();
    let mut driver = Driver::new(&machine);
    (driver.available, driver.used, driver.completed) = (available, used, completed);
    driver.publish(4);
    let _monitor = machine.start_monitor();
    driver.take_all();
    assert_eq!(driver.completed, 5, "{:?}", machine.reported.0);
}

/// A disk that has been served, or that a copy has of its original, may have requests in flight.
#[test]
fn only_a_disk_that_nobody_has_used_has_no_requests() {
    let folder = tempfile::tempdir().unwrap();
    let mut machine = Machine::new(folder.path());
    assert!(!machine.context().may_have_requests());
    drop(machine.start_monitor());
    assert!(
        machine.context().may_have_requests(),
        "of the last supervisor"
    );
    machine.checkpoint.remove();
    machine.is_copy = true;
    assert!(machine.context().may_have_requests(), "of its original");
}

/// The daemon opens its file by the path: it must be the one that is locked.
#[test]
fn a_file_that_took_anothers_place_is_not_served() {
    let folder = tempfile::tempdir().unwrap();
    let machine = Machine::new(folder.path());
    let file = machine.locked();
    drop(file.lock(TIMEOUT).unwrap());
    let served = at_path(&machine);
    fs::rename(&machine.file.path, folder.path().join("away")).unwrap();
    File::create(&machine.file.path).unwrap();
    let start = || {
        connect(
            &file,
            FEATURES,
            &std::sync::Arc::default(),
            &machine.context(),
        )
    };
    let refused = start().err().unwrap().to_string();
    assert!(refused.contains("another file"), "{refused}");
    fs::rename(folder.path().join("away"), &machine.file.path).unwrap();
    start().unwrap();
    assert_eq!(file.identity(), Some(served));
}
