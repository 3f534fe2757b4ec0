//! What random calls are made on: descriptors that several threads share, use and close.
//!
//! Memory that holds something, nodes that are being put together and nodes that run hardly ever
//! come of random calls. So some are supplied now and then, and what is done to them is up to
//! chance.

use std::collections::BTreeMap;
use std::fs::File;
use std::mem::offset_of;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use fastrand::Rng;
use insula::driver::{Driver, Node};
use insula_abi::channel::{DOORBELL_APIC_SHIFT, DOORBELL_VALID};
use insula_abi::lwk::{Delegation, DelegationPlace};
use insula_abi::{Chunks, GRANULE, Hello, NUMA_ANY, REQUEST_BLOCKS, Request, ioctl};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use zerocopy::IntoBytes;

use super::Finding;
use super::fuzz_call::{ARENA_WORDS, FREE_CPUS, Given, Kind, make_up, name, pick, random_request};
use super::idle_node::IdleMemory;
use super::raw_device::{Answer, Arena, Argument, call, look_at};

/// Descriptors of each kind that are open at once.
const MEMORIES: usize = 6;
const NODES: usize = 3;
const CHANNELS: usize = 8;
const LENDERS: usize = 3;
/// Eventfds, which events of channels are bound to.
const EVENTFDS: usize = 6;
/// Most pages of a memory object that are looked at: more than one chunk has.
const PAGES: usize = 1500;
/// Where in an arena a node's first chunk is told.
const CHUNK_WORD: usize = 64;
/// What is done to the node that is to go on running: anything else could end it.
const HARMLESS: [u32; 2] = [ioctl::CHANNEL_OPEN, ioctl::NODE_LEND];
/// What is asked of a node as soon as it runs: it may soon have ended, and of these most are refused.
const AT_ONCE: [u32; 2] = [ioctl::NODE_SHRINK, ioctl::SPACE_CREATE];
const TIMES_AT_ONCE: usize = 6;
/// The memory that is supplied: what a node begins with, and a granule that is anybody's.
pub(super) const SUPPLY: Request = Request {
    size: 2 * GRANULE,
    min_phys: 0,
    max_phys: 0,
    chunk_max: 2 * GRANULE,
    numa_node: NUMA_ANY,
    flags: REQUEST_BLOCKS,
};
/// Memory that some of the nodes share.
const SHARED: Request = Request {
    size: GRANULE,
    chunk_max: GRANULE,
    ..SUPPLY
};
/// A vector at which nobody listens: the core has its interrupts off.
const VECTOR: u64 = 0x40;

/// How many calls the module accepted, by request.
pub(super) type Accepted = BTreeMap<u32, u64>;

/// The descriptors that are called, shared by all threads.
pub(super) struct Targets {
    driver: Driver,
    /// Held by whoever calls at random; alone by whoever has descriptors that are not to be hit by
    /// a call to one that was closed.
    calling: RwLock<()>,
    /// One of them has not greeted the module.
    controls: [File; 2],
    /// A node that runs, and is to go on doing so.
    neighbour: Node,
    memories: Slots,
    nodes: Slots,
    channels: Slots,
    lenders: Slots,
    eventfds: Slots,
    accepted: Mutex<Accepted>,
}

impl Targets {
    /// All that there is before the first call.
    pub(super) fn open(driver: Driver, neighbour: Node) -> Result<Self, Finding> {
        let device = || File::options().read(true).write(true).open("/dev/insula");
        let controls = [device()?, device()?];
        let arena = Arena::new(ARENA_WORDS);
        arena.put(0, Hello::default().as_bytes());
        call(
            controls[0].as_raw_fd(),
            ioctl::HELLO,
            Argument::Arena(&arena),
        )?;
        Ok(Self {
            driver,
            calling: RwLock::new(()),
            controls,
            neighbour,
            memories: Slots::new(MEMORIES),
            nodes: Slots::new(NODES),
            channels: Slots::new(CHANNELS),
            lenders: Slots::new(LENDERS),
            eventfds: Slots::new(EVENTFDS),
            accepted: Mutex::default(),
        })
    }

    /// Does something at random.
    pub(super) fn act(&self, rng: &mut Rng, arena: &Arena) {
        match rng.u8(..32) {
            0 => self.memories.close(rng),
            // They are hard to come by.
            1 if rng.u8(..16) == 0 => self.nodes.close(rng),
            2 => self.channels.close(rng),
            3 if rng.bool() => self.lenders.close(rng),
            4 => self.signal(rng),
            5 => self.channels.listen(rng),
            6 => self.channels.look(rng),
            7 | 8 => self.memories.look(rng),
            // Name, core or memory may be somebody else's.
            9 if rng.u8(..6) == 0 => drop(self.supply(rng, arena)),
            _ => self.request(rng, arena),
        }
    }

    /// Writes to an eventfd, of which there is another each time it is not bound to anything.
    fn signal(&self, rng: &mut Rng) {
        if let (0, Ok(new)) = (rng.u8(..4), EventFd::from_flags(EfdFlags::EFD_NONBLOCK)) {
            self.eventfds.keep(rng, new.into());
        }
        if let Some(eventfd) = self.eventfds.copy(rng) {
            let _ = nix::unistd::write(eventfd, &1_u64.to_ne_bytes());
        }
    }

    /// How many calls were accepted so far.
    pub(super) fn accepted(&self) -> Accepted {
        let accepted = self.accepted.lock();
        accepted.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Supplies memory, or a node: one that is being put together, or one that runs.
    fn supply(&self, rng: &mut Rng, arena: &Arena) -> Result<(), Finding> {
        let _alone = self.calling.write();
        let memory = IdleMemory::take(&self.driver, &SUPPLY)?;
        let kind = rng.u8(..8);
        if kind < 3 {
            let memory = memory.object.as_fd().try_clone_to_owned()?;
            self.memories.keep(rng, memory);
            return Ok(());
        }
        let cpu = rng.u32(FREE_CPUS);
        let node = self
            .driver
            .create_node(&name(rng), &[], &[cpu], &memory.object)?;
        if kind < 5 {
            self.lay_out_delegation(&node, &memory)?;
        }
        if rng.bool() {
            self.share(rng, arena, &node)?;
        }
        if kind < 7 {
            node.start(&memory.beginning())?;
            for _ in 0..TIMES_AT_ONCE {
                let request = AT_ONCE[rng.usize(..AT_ONCE.len())];
                self.ask(rng, arena, request, node.as_fd().as_raw_fd(), -1);
            }
        }
        self.nodes.keep(rng, node.as_fd().try_clone_to_owned()?);
        Ok(())
    }

    /// Asks that a node that is being put together share memory, which is then anybody's: nodes do not
    /// stay so for long, and most memory is empty or somebody's own.
    fn share(&self, rng: &mut Rng, arena: &Arena, node: &Node) -> Result<(), Finding> {
        let memory = self.driver.create_memory()?;
        memory.grow(&SHARED)?;
        let memory = memory.as_fd().try_clone_to_owned()?;
        let node = node.as_fd().as_raw_fd();
        self.ask(rng, arena, ioctl::NODE_SHARE, node, memory.as_raw_fd());
        self.memories.keep(rng, memory);
        Ok(())
    }

    /// As one has it whose kernel takes programs.
    fn lay_out_delegation(&self, node: &Node, memory: &IdleMemory) -> Result<(), Finding> {
        node.lay_out_delegation(DelegationPlace {
            start: memory.start + GRANULE,
            pages: 64,
            reserved: 0,
        })?;
        let (_, cpus) = node.info()?;
        let apic_id = cpus.first().map_or(0, |cpu| u64::from(cpu.apic_id));
        let doorbell = DOORBELL_VALID | apic_id << DOORBELL_APIC_SHIFT | VECTOR;
        memory.set(
            GRANULE + offset_of!(Delegation, lwk_doorbell) as u64,
            doorbell,
        )
    }

    fn request(&self, rng: &mut Rng, arena: &Arena) {
        let _calling = self.calling.read();
        let (mut request, mut kind) = pick(rng);
        match rng.u8(..16) {
            0 => request = random_request(rng),
            1 => kind = Kind::ALL[rng.usize(..Kind::ALL.len())],
            _ => {}
        }
        let fd = match kind {
            Kind::Node if HARMLESS.contains(&request) && rng.bool() => {
                self.neighbour.as_fd().as_raw_fd()
            }
            _ => self.descriptor(rng, kind),
        };
        let memory = self.memories.any(rng);
        self.ask(rng, arena, request, fd, memory);
    }

    /// Makes a call of that kind on `fd`, which may name `memory`.
    fn ask(&self, rng: &mut Rng, arena: &Arena, request: u32, fd: RawFd, memory: RawFd) {
        let given = Given {
            memory,
            eventfds: [self.eventfds.any(rng), self.eventfds.any(rng)],
            place: match request {
                ioctl::NODE_CHANNELS | ioctl::NODE_DELEGATION => memory_of(fd, arena),
                _ => 0,
            },
        };
        make_up(rng, arena, request, given);
        let argument = match rng.u8(..32) {
            0 => Argument::Nowhere(rng.usize(..4)),
            _ => Argument::Arena(arena),
        };
        let Ok(answer) = call(fd, request, argument) else {
            return;
        };
        if let Answer::Descriptor(new) = answer {
            self.keep(rng, request, new);
        }
        let mut accepted = self.accepted.lock().unwrap_or_else(PoisonError::into_inner);
        *accepted.entry(request).or_default() += 1;
    }

    fn descriptor(&self, rng: &mut Rng, kind: Kind) -> RawFd {
        match kind {
            Kind::Memory => self.memories.any(rng),
            Kind::Node => self.nodes.any(rng),
            Kind::Channel => self.channels.any(rng),
            Kind::Lender => self.lenders.any(rng),
            // The one that has not greeted is refused everything: rarely tried.
            Kind::Control => self.controls[usize::from(rng.u8(..16) == 0)].as_raw_fd(),
        }
    }

    fn keep(&self, rng: &mut Rng, request: u32, new: OwnedFd) {
        match request {
            ioctl::NODE_CREATE | ioctl::NODE_OPEN => self.nodes.keep(rng, new),
            ioctl::NODE_LEND => self.lenders.keep(rng, new),
            ioctl::CHANNEL_OPEN => {
                // Nobody rings: who reads is not to wait.
                let _ = fcntl(&new, FcntlArg::F_SETFL(OFlag::O_RDWR | OFlag::O_NONBLOCK));
                self.channels.keep(rng, new);
            }
            _ => self.memories.keep(rng, new),
        }
    }
}

/// Where the memory of a node begins, if it has some.
fn memory_of(node: RawFd, arena: &Arena) -> u64 {
    let Ok(Answer::Descriptor(memory)) = call(node, ioctl::NODE_MEMORY, Argument::Arena(arena))
    else {
        return 0;
    };
    let chunks = Chunks {
        chunks: arena.address() + 8 * CHUNK_WORD as u64,
        capacity: 1,
        count: 0,
    };
    arena.put(0, chunks.as_bytes());
    arena.put(CHUNK_WORD, &[0; 8]);
    let _ = call(
        memory.as_raw_fd(),
        ioctl::MEMORY_CHUNKS,
        Argument::Arena(arena),
    );
    arena.word(CHUNK_WORD)
}

/// Places for descriptors. Each is owned here, but used without asking: whoever uses one may find
/// it closed.
struct Slots(Vec<Mutex<Option<OwnedFd>>>);

impl Slots {
    fn new(count: usize) -> Self {
        Self((0..count).map(|_| Mutex::new(None)).collect())
    }

    /// One of the places, locked.
    fn place(&self, rng: &mut Rng) -> MutexGuard<'_, Option<OwnedFd>> {
        let place = &self.0[rng.usize(..self.0.len())];
        place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts one into a place; what was there is closed once the place is free again.
    fn keep(&self, rng: &mut Rng, new: OwnedFd) {
        let old = self.place(rng).replace(new);
        drop(old);
    }

    fn close(&self, rng: &mut Rng) {
        let old = self.place(rng).take();
        drop(old);
    }

    /// Another descriptor of what one of them stands for.
    fn copy(&self, rng: &mut Rng) -> Option<OwnedFd> {
        self.place(rng).as_ref()?.try_clone().ok()
    }

    /// The number of one of them, or none's.
    fn any(&self, rng: &mut Rng) -> RawFd {
        self.place(rng).as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    /// Maps one of them and looks at its first pages, while others may grow and close it.
    fn look(&self, rng: &mut Rng) {
        let pages = NonZeroUsize::MIN.saturating_add(rng.usize(..PAGES));
        if let Some(memory) = self.copy(rng) {
            let _ = look_at(memory.as_fd(), pages);
        }
    }

    /// Looks whether one of them has been rung, and how often.
    fn listen(&self, rng: &mut Rng) {
        if let Some(end) = self.copy(rng) {
            let _ = poll(
                &mut [PollFd::new(end.as_fd(), PollFlags::POLLIN)],
                PollTimeout::ZERO,
            );
            let _ = nix::unistd::read(&end, &mut [0; 8][..rng.usize(..9)]);
        }
    }
}
