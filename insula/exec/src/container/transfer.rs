//! Moving a container from one Linux kernel to another: that of a node or of the base.
//!
//! The source dumps it, and its files go through this process to the target, which restores it. Packets
//! for it are [held](PacketHold) meanwhile. Until the source is told to remove it, it goes on there
//! whatever fails: both agents give up when their connection ends.

use std::thread;
use std::time::{Duration, Instant};

use insula_agent::container::{Dumped, MoveStep};
use insula_base::error::{Error, Kind};
use insula_base::root::Root;
use insula_driver::Driver;
use insula_driver::name::Name;
use insula_virtio::PacketHold;
use serde::{Serialize, Serializer};

use super::ask::refused;
use super::base_agent;
use super::check::{check, memory, not_moved};
use super::peer::{IsLast, Peer};
use super::pre_copy::PreCopied;
use super::record::{self, ContainerRecord, Records, read};
use super::settle::{has_ended, locate, settle, source_has_it};
use crate::agent::Location;

/// A move that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct MovedContainer {
    /// Time from the request to dump it until it went on.
    #[serde(rename = "stood_still_ns", serialize_with = "as_ns")]
    #[cfg_attr(feature = "schemars", schemars(with = "u64"))]
    pub stood_still: Duration,
    /// Bytes of its images and its log.
    pub image_bytes: u64,
    /// Bytes of its memory that were copied before, while it ran.
    pub pre_copied_bytes: u64,
    /// Packets that were held for it meanwhile.
    pub held_packets: usize,
}

/// A container to be moved.
#[derive(Clone, Copy, Debug)]
pub struct ContainerMove<'a> {
    /// Its name.
    pub name: &'a Name,
    /// Where to.
    pub target: &'a Location,
    /// Whether its memory is copied while it runs, first.
    pub pre_copy: PreCopy,
}

/// Whether a container's memory is copied while it runs, before it is moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PreCopy {
    /// If there is so much of it that the container then stands still for less time.
    #[default]
    Auto,
    /// In any case.
    Always,
    /// In none.
    Never,
}

impl PreCopy {
    fn is_for(self, driver: &Driver, record: &ContainerRecord) -> bool {
        match self {
            Self::Auto => memory(driver, record) >= MUCH_MEMORY,
            Self::Always => true,
            Self::Never => false,
        }
    }
}

/// Bytes that take longer to copy than a round of copying needs for the rest.
const MUCH_MEMORY: u64 = 32 << 20;

fn as_ns<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

/// Checks whether a container can be moved to a node, as far as that can be told before.
///
/// # Errors
/// What is in the way.
pub fn check_move(
    driver: &Driver,
    root: &Root,
    name: &Name,
    target: &Location,
) -> Result<(), Error> {
    let record = read(root, name)?.ok_or_else(|| no_container(name))?;
    let record = locate(driver, record.clone())?.unwrap_or(record);
    check(driver, &record, target).map(drop)
}

/// Moves a container to a node, or to the base.
///
/// # Errors
/// When it cannot be moved; it goes on where it was, unless the error says otherwise.
pub fn move_to(
    driver: &Driver,
    root: &Root,
    request: &ContainerMove<'_>,
) -> Result<MovedContainer, Error> {
    let target = request.target;
    let _lock = record::lock_moves(root)?;
    let mut record = as_it_is(driver, root, request.name)?;
    if let Some(rootfs) = check(driver, &record, target)? {
        record.rootfs = Some(rootfs);
    }
    let moved = move_checked(driver, root, &record, request);
    if [&record.node, target].contains(&&Location::Base) {
        // It may have been the last one there, or the first one that did not come.
        base_agent::end_if_unused(root);
    }
    moved
}

fn move_checked(
    driver: &Driver,
    root: &Root,
    record: &ContainerRecord,
    request: &ContainerMove<'_>,
) -> Result<MovedContainer, Error> {
    let target = request.target;
    let mut ends = Ends {
        pre_copied: None,
        source: &record.node,
        target,
    };
    if request.pre_copy.is_for(driver, record) {
        let rootfs = record.rootfs.as_deref();
        let copied = PreCopied::copy(driver, record, (&record.node, target), rootfs);
        ends.pre_copied =
            Some(copied.map_err(|error| not_moved_to(driver, record, target, error))?);
    }
    until_not_busy(|| attempt(driver, root, record.clone(), &mut ends))
}

/// Both ends of a move.
struct Ends<'a> {
    /// The connections to them, by which memory was copied already.
    pre_copied: Option<PreCopied<'a>>,
    source: &'a Location,
    target: &'a Location,
}

/// The record of a container that nobody else moves, once an interrupted move of it is settled.
pub(super) fn as_it_is(
    driver: &Driver,
    root: &Root,
    name: &Name,
) -> Result<ContainerRecord, Error> {
    let record = read(root, name)?.ok_or_else(|| no_container(name))?;
    let record = locate(driver, record.clone())?.unwrap_or(record);
    settle(driver, root, record)
}

/// Tries something again while connections are being made to the container, for a time.
pub(super) fn until_not_busy<T>(mut attempt: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    let began = Instant::now();
    loop {
        let again =
            |error: &Error| error.kind == Kind::Unavailable && began.elapsed() < BUSY_TIMEOUT;
        match attempt() {
            Err(error) if again(&error) => thread::sleep(INTERVAL),
            done => return done,
        }
    }
}

/// Tries to move it once.
fn attempt(
    driver: &Driver,
    root: &Root,
    record: ContainerRecord,
    ends: &mut Ends<'_>,
) -> Result<MovedContainer, Error> {
    let name = record.name.clone();
    let pre_copied_bytes = ends.pre_copied.as_ref().map_or(0, PreCopied::bytes);
    let began = Instant::now();
    let hold = record.address.map(PacketHold::begin).transpose();
    let hold = hold.map_err(|error| not_moved(&name).because(error).leaving(GOES_ON))?;
    let moved = transfer(driver, root, record, ends);
    let stood_still = began.elapsed();
    let at = read(root, &name)?.map_or_else(|| ends.target.clone(), |record| record.node);
    let held = hold.map(|hold| hold.release(at.port(driver)?).map_err(released));
    let image_bytes = moved?;
    Ok(MovedContainer {
        stood_still,
        image_bytes,
        pre_copied_bytes,
        held_packets: held.transpose()?.unwrap_or(0),
    })
}

/// Time within which a moment without new connections must come, and the pause between attempts.
const BUSY_TIMEOUT: Duration = Duration::from_secs(20);
const INTERVAL: Duration = Duration::from_millis(5);
/// What every failure before the last steps leaves.
const GOES_ON: &str = "it goes on where it was";
/// What the end of the node leaves on which it is.
const ENDED: &str = "it has ended with its node";

/// The error of a move that was not made.
fn not_moved_to(
    driver: &Driver,
    record: &ContainerRecord,
    target: &Location,
    error: Error,
) -> Error {
    let context = format!(
        "the container '{}' was not moved to '{target}'",
        record.name
    );
    let left = match has_ended(driver, &record.node) {
        true => ENDED,
        false => GOES_ON,
    };
    error.context(context).leaving(left)
}

/// The error of a move to a node that has ended since.
fn ended(record: &ContainerRecord, target: &Location, error: Error) -> Error {
    let context = format!("the container '{}' was moved to '{target}'", record.name);
    error.context(context).leaving(ENDED)
}

/// Moves it, and returns the size of its files in bytes.
fn transfer(
    driver: &Driver,
    root: &Root,
    mut record: ContainerRecord,
    ends: &mut Ends<'_>,
) -> Result<u64, Error> {
    let target = ends.target;
    let before = record.clone();
    let failed = |error: Error| not_moved_to(driver, &before, target, error);
    let copied = copy(driver, &record, ends);
    let (mut from, mut to, bytes) = copied.map_err(|error| {
        // It goes on when the source has seen that the connection has ended, if it has.
        if ends.pre_copied.is_none() {
            let _ = source_has_it(driver, &record);
        }
        failed(error)
    })?;
    record.moving_to = Some(target.clone());
    Records::lock(root)?.write(&record).map_err(failed)?;
    let stepped = to
        .step(MoveStep::Keep)
        .and_then(|()| from.step(MoveStep::Release))
        .and_then(|()| to.step(MoveStep::Resume));
    drop((from, to));
    if stepped.is_ok() {
        record.moving_to = None;
        record.node = target.clone();
        record.node_id = target.node_id(driver);
        Records::lock(root)?.write(&record)?;
        return Ok(bytes);
    }
    let settled = settle(driver, root, record)?;
    match (stepped, settled.node == *target) {
        (Err(error), false) => Err(failed(error)),
        (Err(error), true) if has_ended(driver, target) => Err(ended(&before, target, error)),
        _ => Ok(bytes),
    }
}

/// Has the source dump it and the target restore it. Returns both, and the size of its files in bytes.
fn copy<'a>(
    driver: &Driver,
    record: &ContainerRecord,
    ends: &mut Ends<'a>,
) -> Result<(Peer<'a>, Peer<'a>, u64), Error> {
    match ends.pre_copied.take() {
        Some(copied) => copied.finish(&mut ends.pre_copied),
        None => copy_at_once(driver, record, ends.source, ends.target),
    }
}

fn copy_at_once<'a>(
    driver: &Driver,
    record: &ContainerRecord,
    source: &'a Location,
    target: &'a Location,
) -> Result<(Peer<'a>, Peer<'a>, u64), Error> {
    let mut from = Peer::connect(driver, source)?;
    let dumped = from.dump(&record.name)?;
    // Not before: an agent waits 10 s for a request.
    let mut to = Peer::connect(driver, target)?;
    is_it(record, &dumped).map_err(|reason| refused(source, reason))?;
    to.restore(dumped, record.rootfs.as_deref())?;
    let bytes = from.forward(&mut to, IsLast::Yes)?;
    Ok((from, to, bytes))
}

/// A node cannot have another one take a name or an address of others.
pub(super) fn is_it(record: &ContainerRecord, dumped: &Dumped) -> Result<(), &'static str> {
    match dumped.spec.name == record.name.as_str() && dumped.spec.address == record.address {
        true => Ok(()),
        false => Err("this is another container"),
    }
}

/// The error of a container that is not there.
#[must_use]
pub fn no_container(name: &Name) -> Error {
    Error::new(format!("there is no container '{name}'"))
        .untouched()
        .hint("`insula ps` lists them")
}

/// The error for held packets that were not sent on: they come again from their senders.
fn released(error: insula_virtio::HoldError) -> Error {
    Error::new("the packets that were held cannot be sent on")
        .because(error)
        .leaving("the container goes on, and its peers repeat what they have sent")
}
