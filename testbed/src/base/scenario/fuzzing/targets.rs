//! Targets of random calls: descriptors that several threads share, use and close.
//!
//! Random calls hardly ever produce memory with content, nodes that are not yet started and nodes
//! that run. So some are supplied now and then, and random calls are made on them.

use std::collections::BTreeMap;
use std::fs::File;
use std::mem::offset_of;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use fastrand::Rng;
use insula_abi::channel::{DOORBELL_APIC_SHIFT, DOORBELL_VALID};
use insula_abi::lwk::{Delegation, DelegationPlace};
use insula_abi::monitor::{
    MONITOR_CORE_SIZE, MONITOR_MAGIC, MONITOR_REVISION, Monitor, MonitorCore,
};
use insula_abi::{Chunk, Chunks, GRANULE, Hello, Request, ioctl};
use insula_driver::{Driver, Node};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use zerocopy::{FromZeros, IntoBytes};

use super::call::{
    ARENA_WORDS, Available, FREE_CPUS, MONITOR_HEADER, MONITOR_TABLES, generate, name,
};
use super::requests::{Kind, pick, random_request};
use crate::base::Finding;
use crate::base::support::nodes::idle_node::{IdleMemory, SUPPLY};
use crate::base::support::raw_device::{Answer, Arena, Argument, call, read_mapped};

/// Most open descriptors of each kind.
const MEMORIES: usize = 6;
const NODES: usize = 3;
const CHANNELS: usize = 8;
const GRANT_TABLES: usize = 3;
/// Number of eventfds that are bound to channels.
const EVENTFDS: usize = 6;
/// Most pages of a memory object that are read: more than one chunk has.
const PAGES: usize = 1500;
/// Offset in an arena of a node's first chunk, in words.
const CHUNK_WORD: usize = 64;
/// Requests to the node that must go on running: any other could end it.
const HARMLESS: [u32; 2] = [ioctl::CHANNEL_OPEN, ioctl::NODE_GRANT_TABLE];
/// Requests to a node as soon as it runs: it may soon have ended, and most of these are refused.
const AT_ONCE: [u32; 2] = [ioctl::NODE_SHRINK, ioctl::MIRROR_CREATE];
const TIMES_AT_ONCE: usize = 6;
/// Requests to memory that is shown, and to an object that shows it, while both are there: such objects are rare.
const OF_SHOWN: [u32; 2] = [ioctl::MEMORY_GIVE_SET, ioctl::MEMORY_LIST_SET];
const OF_SHOWING: [u32; 2] = [ioctl::MEMORY_STORE_SET, ioctl::MEMORY_OWN_SET];
/// Memory that some of the nodes share.
const SHARED: Request = Request {
    size: GRANULE,
    chunk_max: GRANULE,
    ..SUPPLY
};
/// Vector without a handler: the core has its interrupts off.
const VECTOR: u64 = 0x40;

/// Number of calls that the module accepted, by request.
pub(super) type Accepted = BTreeMap<u32, u64>;

/// Descriptors for calls, shared by all threads.
pub(super) struct Targets {
    driver: Driver,
    /// Read-locked during random calls; write-locked while descriptors are open that a call to a
    /// closed one's number must not hit.
    calling: RwLock<()>,
    /// One of them has not completed the greeting (HELLO).
    controls: [File; 2],
    /// A node that must go on running.
    neighbour: Node,
    memories: Descriptors,
    nodes: Descriptors,
    channels: Descriptors,
    grant_tables: Descriptors,
    eventfds: Descriptors,
    accepted: Mutex<Accepted>,
}

impl Targets {
    /// Opens all that exists before the first call.
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
            memories: Descriptors::new(MEMORIES),
            nodes: Descriptors::new(NODES),
            channels: Descriptors::new(CHANNELS),
            grant_tables: Descriptors::new(GRANT_TABLES),
            eventfds: Descriptors::new(EVENTFDS),
            accepted: Mutex::default(),
        })
    }

    /// Takes a random step.
    pub(super) fn step(&self, rng: &mut Rng, arena: &Arena) {
        match rng.u8(..32) {
            0 => self.memories.close(rng),
            // Nodes are rare.
            1 if rng.u8(..16) == 0 => self.nodes.close(rng),
            2 => self.channels.close(rng),
            3 if rng.bool() => self.grant_tables.close(rng),
            4 => self.signal(rng),
            5 => self.channels.read_count(rng),
            6 => self.channels.read_mapped(rng),
            7 | 8 => self.memories.read_mapped(rng),
            // Fails if name, core or memory are in use.
            9 if rng.u8(..6) == 0 => drop(self.supply(rng, arena)),
            _ => self.request(rng, arena),
        }
    }

    /// Writes to an eventfd, and replaces it if it is not bound.
    fn signal(&self, rng: &mut Rng) {
        if let (0, Ok(new)) = (rng.u8(..4), EventFd::from_flags(EfdFlags::EFD_NONBLOCK)) {
            self.eventfds.store(rng, new.into());
        }
        if let Some(eventfd) = self.eventfds.duplicate(rng) {
            let _ = nix::unistd::write(eventfd, &1_u64.to_ne_bytes());
        }
    }

    /// Number of calls accepted so far.
    pub(super) fn accepted(&self) -> Accepted {
        let accepted = self.accepted.lock();
        accepted.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Supplies memory, or a node: one that is not yet started, or one that runs.
    fn supply(&self, rng: &mut Rng, arena: &Arena) -> Result<(), Finding> {
        let _alone = self.calling.write();
        if rng.u8(..4) == 0 {
            return self.show(rng, arena);
        }
        let memory = IdleMemory::allocate(&self.driver, &SUPPLY)?;
        let kind = rng.u8(..8);
        if kind < 3 {
            let memory = memory.object.as_fd().try_clone_to_owned()?;
            self.memories.store(rng, memory);
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
        let is_confined = rng.u8(..4) == 0;
        if is_confined {
            self.confine(rng, arena, &node)?;
        }
        // A core that starts in what only looks like a monitor resets the machine.
        if kind < 7 && !is_confined {
            node.start(&memory.start_parameters())?;
            for _ in 0..TIMES_AT_ONCE {
                let request = AT_ONCE[rng.usize(..AT_ONCE.len())];
                self.call_on(rng, arena, request, node.as_fd().as_raw_fd(), -1);
            }
        }
        self.nodes.store(rng, node.as_fd().try_clone_to_owned()?);
        Ok(())
    }

    /// Supplies an image's memory, and an object that shows it at an address at which it is not.
    fn show(&self, rng: &mut Rng, arena: &Arena) -> Result<(), Finding> {
        let image = self.driver.create_memory()?;
        image.grow(&SHARED)?;
        self.driver.add_image(&name(rng), b"{}", &image)?;
        let elsewhere = Chunk {
            start: GRANULE * rng.u64(1..1 << 20),
            size: GRANULE,
        };
        let shown = self.driver.show_memory(&image, &[elsewhere])?;
        for (memory, requests) in [(&image, OF_SHOWN), (&shown, OF_SHOWING)] {
            for request in requests {
                self.call_on(rng, arena, request, memory.as_fd().as_raw_fd(), -1);
            }
        }
        for memory in [image, shown] {
            let memory = memory.as_fd().try_clone_to_owned()?;
            self.memories.store(rng, memory);
        }
        self.count(ioctl::MEMORY_SHOW);
        Ok(())
    }

    /// Has a node that is not yet started share memory, and publishes the memory: nodes do not stay
    /// in that state for long, and most memory is empty or private.
    fn share(&self, rng: &mut Rng, arena: &Arena, node: &Node) -> Result<(), Finding> {
        let memory = self.driver.create_memory()?;
        memory.grow(&SHARED)?;
        let memory = memory.as_fd().try_clone_to_owned()?;
        let node = node.as_fd().as_raw_fd();
        self.call_on(rng, arena, ioctl::NODE_SHARE, node, memory.as_raw_fd());
        self.memories.store(rng, memory);
        Ok(())
    }

    /// Confines a node that is not yet started, by memory that looks like a monitor's; and publishes that
    /// memory, so that it changes while the module looks at it. No call starts such a node.
    fn confine(&self, rng: &mut Rng, arena: &Arena, node: &Node) -> Result<(), Finding> {
        let memory = self.driver.create_memory()?;
        memory.grow(&SHARED)?;
        let start = memory.chunks()?[0].start;
        let (_, cpus) = node.info()?;
        let header = Monitor {
            magic: MONITOR_MAGIC,
            revision: MONITOR_REVISION,
            cores_count: cpus.len() as u32,
            cores: start + MONITOR_CORE_SIZE,
            nested_page_table: start + MONITOR_TABLES,
            functions: start + MONITOR_TABLES,
            ..Monitor::new_zeroed()
        };
        let mut mapping = memory.map()?;
        mapping.write(MONITOR_HEADER, header.as_bytes())?;
        for (cpu, index) in cpus.iter().zip(0..) {
            let core = MonitorCore {
                apic_id: cpu.apic_id,
                index,
                ..MonitorCore::default()
            };
            let area = MONITOR_CORE_SIZE * (1 + u64::from(index));
            mapping.write(area, core.as_bytes())?;
        }
        let memory = memory.as_fd().try_clone_to_owned()?;
        let node = node.as_fd().as_raw_fd();
        for request in [
            ioctl::NODE_CONFINE,
            ioctl::NODE_MONITOR,
            ioctl::NODE_CONFINE,
        ] {
            self.call_with(rng, arena, request, node, memory.as_raw_fd(), start);
        }
        self.memories.store(rng, memory);
        Ok(())
    }

    /// Lays out the delegation area as for a lightweight kernel.
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
        self.call_on(rng, arena, request, fd, memory);
    }

    /// Makes a call of that kind on `fd`, which may name `memory`.
    fn call_on(&self, rng: &mut Rng, arena: &Arena, request: u32, fd: RawFd, memory: RawFd) {
        let address = match request {
            ioctl::NODE_CHANNELS | ioctl::NODE_DELEGATION => memory_of(fd, arena),
            _ => 0,
        };
        self.call_with(rng, arena, request, fd, memory, address);
    }

    /// The same, with a physical address that it may name.
    fn call_with(
        &self,
        rng: &mut Rng,
        arena: &Arena,
        request: u32,
        fd: RawFd,
        memory: RawFd,
        address: u64,
    ) {
        let available = Available {
            memory,
            eventfds: [self.eventfds.any(rng), self.eventfds.any(rng)],
            address,
        };
        generate(rng, arena, request, available);
        let argument = match rng.u8(..32) {
            0 => Argument::Nowhere(rng.usize(..4)),
            _ => Argument::Arena(arena),
        };
        let Ok(answer) = call(fd, request, argument) else {
            return;
        };
        if let Answer::Descriptor(new) = answer {
            self.store(rng, request, new);
        }
        self.count(request);
    }

    /// Counts a call that was accepted.
    fn count(&self, request: u32) {
        let mut accepted = self.accepted.lock().unwrap_or_else(PoisonError::into_inner);
        *accepted.entry(request).or_default() += 1;
    }

    fn descriptor(&self, rng: &mut Rng, kind: Kind) -> RawFd {
        match kind {
            Kind::Memory => self.memories.any(rng),
            Kind::Node => self.nodes.any(rng),
            Kind::Channel => self.channels.any(rng),
            Kind::GrantTable => self.grant_tables.any(rng),
            // Without the greeting every request is refused: rarely tried.
            Kind::Control => self.controls[usize::from(rng.u8(..16) == 0)].as_raw_fd(),
        }
    }

    fn store(&self, rng: &mut Rng, request: u32, new: OwnedFd) {
        match request {
            ioctl::NODE_CREATE | ioctl::NODE_OPEN => self.nodes.store(rng, new),
            ioctl::NODE_GRANT_TABLE => self.grant_tables.store(rng, new),
            ioctl::CHANNEL_OPEN => {
                // Nobody rings: reads must not block.
                let _ = fcntl(&new, FcntlArg::F_SETFL(OFlag::O_RDWR | OFlag::O_NONBLOCK));
                self.channels.store(rng, new);
            }
            _ => self.memories.store(rng, new),
        }
    }
}

/// Start of the memory of a node, if it has some.
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

/// Table of descriptors. Each is owned here, but used without a lock: it may be closed meanwhile.
struct Descriptors(Vec<Mutex<Option<OwnedFd>>>);

impl Descriptors {
    fn new(count: usize) -> Self {
        Self((0..count).map(|_| Mutex::new(None)).collect())
    }

    /// A random entry, locked.
    fn entry(&self, rng: &mut Rng) -> MutexGuard<'_, Option<OwnedFd>> {
        let entry = &self.0[rng.usize(..self.0.len())];
        entry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores a descriptor; the one that it replaces is closed after the entry is unlocked.
    fn store(&self, rng: &mut Rng, new: OwnedFd) {
        let old = self.entry(rng).replace(new);
        drop(old);
    }

    fn close(&self, rng: &mut Rng) {
        let old = self.entry(rng).take();
        drop(old);
    }

    /// A duplicate of a random descriptor.
    fn duplicate(&self, rng: &mut Rng) -> Option<OwnedFd> {
        self.entry(rng).as_ref()?.try_clone().ok()
    }

    /// Number of a random descriptor, or an invalid one.
    fn any(&self, rng: &mut Rng) -> RawFd {
        self.entry(rng).as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    /// Maps a random one and reads its first pages, while other threads may grow and close it.
    fn read_mapped(&self, rng: &mut Rng) {
        let pages = NonZeroUsize::MIN.saturating_add(rng.usize(..PAGES));
        if let Some(memory) = self.duplicate(rng) {
            let _ = read_mapped(memory.as_fd(), pages);
        }
    }

    /// Reads the doorbell count of a random one.
    fn read_count(&self, rng: &mut Rng) {
        if let Some(end) = self.duplicate(rng) {
            let _ = poll(
                &mut [PollFd::new(end.as_fd(), PollFlags::POLLIN)],
                PollTimeout::ZERO,
            );
            let _ = nix::unistd::read(&end, &mut [0; 8][..rng.usize(..9)]);
        }
    }
}
