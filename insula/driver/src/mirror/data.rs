//! The data of a proxy, after its blob: parameters, the structure of a call, the system calls before
//! the program starts, messages, and the program's arguments.

use std::os::fd::AsRawFd;

use insula_abi::ioctl;
use insula_abi::lwk::{
    MIRROR_MAP_KEEP, MIRROR_SLOTS, MIRROR_SLOTS_SIZE, MirrorMap, MirrorStart, PAGE_SIZE,
};
use insula_proxy::{Parameters, Step, Text};
use nix::libc::{self, c_long};
use zerocopy::IntoBytes;

use super::region::{ADDRESS_END, SLOTS_SIZE};
use super::signals::Inherited;
use super::{ProxyRegion, ProxyStart};

const NODE_GONE: &str = "insula: the program's node has stopped, and the program with it\n";
const NO_MIRROR: &str =
    "insula: the program's address space could not be mapped; it was not started\n";
const NOT_STARTED: &str = "insula: the node stopped before the program started\n";
const NO_FORK: &str = "insula: the fork of the program could not be started\n";
const MESSAGES: [&str; 4] = [NODE_GONE, NO_MIRROR, NOT_STARTED, NO_FORK];
const MESSAGES_SIZE: usize = NODE_GONE.len() + NO_MIRROR.len() + NOT_STARTED.len() + NO_FORK.len();
/// Number of system calls before the program starts, and before a fork of it does.
const STEPS: usize = 7;
const CHILD_STEPS: usize = 4;
const STEPS_SIZE: usize = STEPS * size_of::<Step>();
const CHILD_STEPS_SIZE: usize = CHILD_STEPS * size_of::<Step>();

/// Bytes after the blob, in whole pages.
pub(super) fn data_size(arguments_size: usize) -> usize {
    let steps = STEPS_SIZE + CHILD_STEPS_SIZE;
    let bytes = size_of::<Parameters>()
        + size_of::<MirrorStart>()
        + size_of::<MirrorMap>()
        + steps
        + MESSAGES_SIZE;
    (bytes + arguments_size).next_multiple_of(PAGE_SIZE as usize)
}

/// The data after the blob, in the order of its parts. The messages follow the steps.
pub(super) struct Data<'a> {
    parameters: Parameters,
    start: MirrorStart,
    holes: MirrorMap,
    steps: [Step; STEPS],
    child_steps: [Step; CHILD_STEPS],
    arguments: &'a [u8],
}

impl<'a> Data<'a> {
    pub(super) fn new(
        region: &ProxyRegion,
        (fd, slot): (i32, u32),
        start: &ProxyStart<'a>,
        signals: Inherited,
    ) -> Self {
        let addresses = Addresses::new(region, start.arguments.len());
        let fd = fd as u64;
        let executable = start.executable.as_ref();
        let executable = executable.map_or(u64::MAX, |fd| fd.as_raw_fd() as u64);
        Self {
            parameters: parameters(region, fd, start.polls, &addresses),
            start: MirrorStart {
                arguments_size: addresses.arguments.size,
                descriptor: fd,
                slots: region.slots(),
                ignored: signals.ignored,
                blocked: signals.blocked,
            },
            holes: MirrorMap {
                start: region.program().start,
                end: region.program().end,
                flags: MIRROR_MAP_KEEP,
            },
            steps: steps(region, (fd, slot), executable, &addresses),
            child_steps: child_steps(region, fd, &addresses),
            arguments: start.arguments,
        }
    }

    pub(super) fn bytes(&self, region: &ProxyRegion) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(region.data_size());
        bytes.extend_from_slice(self.parameters.as_bytes());
        bytes.extend_from_slice(self.start.as_bytes());
        bytes.extend_from_slice(self.holes.as_bytes());
        bytes.extend_from_slice(self.steps.as_bytes());
        bytes.extend_from_slice(self.child_steps.as_bytes());
        MESSAGES
            .iter()
            .for_each(|text| bytes.extend_from_slice(text.as_bytes()));
        bytes.extend_from_slice(self.arguments);
        debug_assert!(bytes.len() <= region.data_size());
        bytes
    }
}

/// Addresses of the parts in the process.
struct Addresses {
    mirror_start: u64,
    holes: u64,
    steps: u64,
    child_steps: u64,
    child_steps_end: u64,
    node_gone: Text,
    no_mirror: Text,
    not_started: Text,
    no_fork: Text,
    arguments: Text,
}

impl Addresses {
    fn new(region: &ProxyRegion, arguments_size: usize) -> Self {
        let mirror_start = region.data() + size_of::<Parameters>() as u64;
        let holes = mirror_start + size_of::<MirrorStart>() as u64;
        let steps = holes + size_of::<MirrorMap>() as u64;
        let child_steps = steps + STEPS_SIZE as u64;
        let child_steps_end = child_steps + CHILD_STEPS_SIZE as u64;
        let mut at = child_steps_end;
        let mut next = |size: usize| {
            let (start, size) = (at, size as u64);
            at += size;
            Text { start, size }
        };
        let [node_gone, no_mirror, not_started, no_fork] = MESSAGES.map(|text| next(text.len()));
        Self {
            mirror_start,
            holes,
            steps,
            child_steps,
            child_steps_end,
            node_gone,
            no_mirror,
            not_started,
            no_fork,
            arguments: next(arguments_size),
        }
    }
}

fn parameters(region: &ProxyRegion, fd: u64, polls: u64, addresses: &Addresses) -> Parameters {
    Parameters {
        mirror: fd,
        slots: region.slots(),
        slots_end: region.slots() + MIRROR_SLOTS_SIZE,
        stacks: region.stacks(),
        spins: polls,
        steps: addresses.steps,
        steps_end: addresses.child_steps,
        child_steps: addresses.child_steps,
        child_steps_end: addresses.child_steps_end,
        arguments: addresses.arguments,
        node_gone: addresses.node_gone,
        all_signals: u64::MAX,
        ..Parameters::default()
    }
}

/// The steps that replace the process's memory with the program's, and start the program.
fn steps(
    region: &ProxyRegion,
    (fd, slot): (u64, u32),
    executable: u64,
    addresses: &Addresses,
) -> [Step; STEPS] {
    let (no_mirror, not_started) = (addresses.no_mirror, addresses.not_started);
    let above = [region.end(), ADDRESS_END - region.end()];
    let set_executable = [
        libc::PR_SET_MM as u64,
        libc::PR_SET_MM_EXE_FILE as u64,
        executable,
    ];
    let attach = [fd, ioctl::MIRROR_SLOT_ATTACH.into(), slot.into()];
    let start = [fd, ioctl::MIRROR_START.into(), addresses.mirror_start];
    [
        step(libc::SYS_munmap, &[0, region.address()], no_mirror),
        step(libc::SYS_munmap, &above, no_mirror),
        map_program(region, fd, no_mirror),
        // Failure of either is ignored: the process is then shown under another name.
        step(libc::SYS_prctl, &set_executable, Text::default()),
        step(libc::SYS_close, &[executable], Text::default()),
        step(libc::SYS_ioctl, &attach, not_started),
        step(libc::SYS_ioctl, &start, not_started),
    ]
}

/// The steps that start a fork of the program, in the forked proxy.
fn child_steps(region: &ProxyRegion, fd: u64, addresses: &Addresses) -> [Step; CHILD_STEPS] {
    let no_fork = addresses.no_fork;
    let adopt = [fd, ioctl::MIRROR_ADOPT.into()];
    // It has inherited its parent's base mappings.
    let map_holes = [fd, ioctl::MIRROR_MAP.into(), addresses.holes];
    let start = [fd, ioctl::MIRROR_START.into(), addresses.mirror_start];
    [
        step(libc::SYS_ioctl, &adopt, no_fork),
        map_at(region.slots(), SLOTS_SIZE, fd, MIRROR_SLOTS, no_fork),
        step(libc::SYS_ioctl, &map_holes, no_fork),
        step(libc::SYS_ioctl, &start, no_fork),
    ]
}

/// The step that maps the program's part of the address space.
fn map_program(region: &ProxyRegion, fd: u64, error_message: Text) -> Step {
    let program = region.program();
    let size = program.end - program.start;
    map_at(program.start, size, fd, program.start, error_message)
}

fn map_at(start: u64, size: u64, fd: u64, offset: u64, error_message: Text) -> Step {
    let writable = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let shared = (libc::MAP_SHARED | libc::MAP_FIXED) as u64;
    let arguments = [start, size, writable, shared, fd, offset];
    step(libc::SYS_mmap, &arguments, error_message)
}

fn step(number: c_long, arguments: &[u64], error_message: Text) -> Step {
    let mut all = [0; 6];
    all.iter_mut()
        .zip(arguments)
        .for_each(|(to, from)| *to = *from);
    Step {
        number: number.cast_unsigned(),
        arguments: all,
        error_message,
    }
}
