//! The data of a proxy, after its blob: parameters, the structure of a call, the system calls before
//! the program starts, messages, and the program's arguments.

use std::ops::Range;

use insula_abi::ioctl;
use insula_abi::lwk::{
    MIRROR_MAP_KEEP, MIRROR_SLOTS, MIRROR_SLOTS_SIZE, MirrorMap, MirrorStart, PAGE_SIZE,
};
use insula_proxy::{Parameters, Step, Text};
use nix::libc::{self, c_long};
use zerocopy::IntoBytes;

use super::region::{ADDRESS_END, RegionLayout, SLOTS_SIZE};
use super::signals::Inherited;

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

/// What the data of a proxy is made from.
pub(super) struct Source<'a> {
    /// Where its parts are.
    pub(super) region: &'a RegionLayout,
    /// The program's part of the address space.
    pub(super) program: Range<u64>,
    /// Number of the mirror's descriptor.
    pub(super) fd: u64,
    /// Polls of a slot's sequence number before sleeping.
    pub(super) polls: u64,
    /// The block that the program's kernel gets when it asks for arguments.
    pub(super) arguments: &'a [u8],
    /// Signals that the program starts with.
    pub(super) signals: Inherited,
}

impl<'a> Data<'a> {
    /// The data of this process, which runs its slot, and becomes known as an executable.
    pub(super) fn new(source: &Source<'a>, slot: u32, executable: u64) -> Self {
        let addresses = Addresses::new(source.region, source.arguments.len());
        let mut data = Self::without_steps(source);
        data.parameters.steps = addresses.steps;
        data.steps = steps(source, slot, executable, &addresses);
        data
    }

    /// The data of a process whose address space is prepared already.
    pub(super) fn without_steps(source: &Source<'a>) -> Self {
        let Source { region, fd, .. } = *source;
        let addresses = Addresses::new(region, source.arguments.len());
        Self {
            parameters: parameters(region, fd, source.polls, &addresses),
            start: MirrorStart {
                arguments_size: addresses.arguments.size,
                descriptor: fd,
                slots: region.slots(),
                ignored: source.signals.ignored,
                blocked: source.signals.blocked,
                running: 0,
            },
            holes: MirrorMap {
                start: source.program.start,
                end: source.program.end,
                flags: MIRROR_MAP_KEEP,
            },
            steps: [Step::default(); STEPS],
            child_steps: child_steps(region, fd, &addresses),
            arguments: source.arguments,
        }
    }

    pub(super) fn bytes(&self, region: &RegionLayout) -> Vec<u8> {
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
    fn new(region: &RegionLayout, arguments_size: usize) -> Self {
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

fn parameters(region: &RegionLayout, fd: u64, polls: u64, addresses: &Addresses) -> Parameters {
    Parameters {
        mirror: fd,
        slots: region.slots(),
        slots_end: region.slots() + MIRROR_SLOTS_SIZE,
        stacks: region.stacks(),
        spins: polls,
        steps: addresses.child_steps,
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
fn steps(source: &Source<'_>, slot: u32, executable: u64, addresses: &Addresses) -> [Step; STEPS] {
    let Source { region, fd, .. } = *source;
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
        map_program(&source.program, fd, no_mirror),
        // Failure of either is ignored: the process is then shown under another name.
        step(libc::SYS_prctl, &set_executable, Text::default()),
        step(libc::SYS_close, &[executable], Text::default()),
        step(libc::SYS_ioctl, &attach, not_started),
        step(libc::SYS_ioctl, &start, not_started),
    ]
}

/// The steps that start a fork of the program, in the forked proxy.
fn child_steps(region: &RegionLayout, fd: u64, addresses: &Addresses) -> [Step; CHILD_STEPS] {
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
fn map_program(program: &Range<u64>, fd: u64, error_message: Text) -> Step {
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
