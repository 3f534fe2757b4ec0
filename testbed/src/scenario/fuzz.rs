//! The module is called at random, by several threads that share descriptors.

use std::fs::File;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fastrand::Rng;
use insula::driver::Driver;
use insula_abi::{Hello, ioctl};
use zerocopy::IntoBytes;

use super::fuzz_call::{ARENA_WORDS, Kind, make_up, pick, random_request};
use super::holdings::{Holdings, assert_unchanged};
use super::insula_command::attended;
use super::raw_device::{Answer, Arena, Argument, call, look_at};
use super::test_node::{TestNode, add_image};
use super::{Context, Finding, Module, Scenario, Shape};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "fuzz",
    proves: "random and changed calls, from threads that share and close descriptors, harm nothing",
    machine: Shape::USUAL,
    module: Module::Loaded,
    limit: Duration::from_secs(300),
    soak_limit: Some(Duration::from_secs(3500)),
    play,
};

const THREADS: u64 = 4;
/// Descriptors of each kind that are open at once.
const MEMORIES: usize = 6;
const NODES: usize = 3;
/// Most pages of a memory object that are looked at: more than one chunk has.
const PAGES: usize = 1500;
/// Of none of the names that are made up.
const IMAGE: &str = "debian";

fn play(context: &Context) -> Result<(), Finding> {
    let seed = Rng::new().u64(..);
    println!("seed: {seed}");
    let calls = context.count(20_000, 1_000_000);
    attended(|| {
        add_image(context, IMAGE, "6.1")?;
        let before = Holdings::now()?;
        let size = ["--cpu-list", "3", "--memory", "192M"];
        let neighbour = TestNode::start("neighbour", &["--image", IMAGE], &size, "compute")?;
        neighbour.assert_ready(&context.release("6.1")?)?;
        let beside = Holdings::now()?;

        let began = Instant::now();
        let accepted = call_at_random(seed, calls)?;
        let seconds = began.elapsed().as_secs_f64();
        context.figure("fuzz.calls", calls as f64, "1")?;
        context.figure("fuzz.accepted", accepted as f64, "1")?;
        context.figure("fuzz.rate", calls as f64 / seconds, "1/s")?;
        // Else nothing but refusals was tried.
        Finding::unless(accepted > calls / 10, || {
            format!("only {accepted} of {calls} calls were accepted")
        })?;

        remove_images()?;
        assert_unchanged(&beside)?;
        neighbour.assert_works()?;
        neighbour.remove()?;
        assert_unchanged(&before)
    })
}

/// Makes as many calls. Answers how many the module accepted.
fn call_at_random(seed: u64, calls: u64) -> Result<u64, Finding> {
    let targets = Targets::open()?;
    let accepted = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for number in 0..THREADS {
            let (targets, accepted) = (&targets, &accepted);
            scope.spawn(move || {
                let mut rng = Rng::with_seed(seed.wrapping_add(number));
                let arena = Arena::new(ARENA_WORDS);
                let mine = (0..calls / THREADS).filter(|_| targets.call(&mut rng, &arena));
                accepted.fetch_add(mine.count() as u64, Ordering::Relaxed);
            });
        }
    });
    Ok(accepted.into_inner())
}

/// The descriptors that are called, shared by all threads.
struct Targets {
    /// One of them has not greeted the module.
    controls: [File; 2],
    memories: Slots,
    nodes: Slots,
}

impl Targets {
    fn open() -> Result<Self, Finding> {
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
            controls,
            memories: Slots::new(MEMORIES),
            nodes: Slots::new(NODES),
        })
    }

    /// Does something at random. Answers whether it was accepted.
    fn call(&self, rng: &mut Rng, arena: &Arena) -> bool {
        match rng.u8(..32) {
            0 => self.memories.close(rng),
            1 => self.nodes.close(rng),
            2 | 3 => self.memories.look(rng),
            _ => self.request(rng, arena),
        }
    }

    fn request(&self, rng: &mut Rng, arena: &Arena) -> bool {
        let (mut request, mut kind) = pick(rng);
        match rng.u8(..16) {
            0 => request = random_request(rng),
            1 => kind = [Kind::Control, Kind::Memory, Kind::Node][rng.usize(..3)],
            _ => {}
        }
        let memory = self.memories.any(rng);
        make_up(rng, arena, request, memory);
        let argument = match rng.u8(..32) {
            0 => Argument::Nowhere(rng.usize(..4)),
            _ => Argument::Arena(arena),
        };
        let answer = call(self.descriptor(rng, kind), request, argument);
        match answer {
            Ok(Answer::Descriptor(new)) => self.keep(rng, request, new),
            Ok(Answer::Number(_)) => {}
            Err(_) => return false,
        }
        true
    }

    fn descriptor(&self, rng: &mut Rng, kind: Kind) -> RawFd {
        match kind {
            Kind::Memory => self.memories.any(rng),
            Kind::Node => self.nodes.any(rng),
            // The one that has not greeted is refused everything: rarely tried.
            Kind::Control => self.controls[usize::from(rng.u8(..16) == 0)].as_raw_fd(),
        }
    }

    fn keep(&self, rng: &mut Rng, request: u32, new: OwnedFd) {
        match request {
            ioctl::NODE_CREATE | ioctl::NODE_OPEN => self.nodes.keep(rng, new),
            _ => self.memories.keep(rng, new),
        }
    }
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

    fn close(&self, rng: &mut Rng) -> bool {
        let old = self.place(rng).take();
        old.is_some()
    }

    /// The number of one of them, or none's.
    fn any(&self, rng: &mut Rng) -> RawFd {
        self.place(rng).as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    /// Maps one of them and looks at its first pages, while others may grow and close it.
    fn look(&self, rng: &mut Rng) -> bool {
        let copy = self.place(rng).as_ref().map(OwnedFd::try_clone);
        let pages = NonZeroUsize::MIN.saturating_add(rng.usize(..PAGES));
        let Some(Ok(memory)) = copy else { return false };
        look_at(memory.as_fd(), pages).is_ok()
    }
}

/// What random calls have left under names. The command cannot list images that it has not made.
fn remove_images() -> Result<(), Finding> {
    let driver = Driver::open()?;
    driver.release()?;
    let ours = insula_abi::Name::new(IMAGE);
    for name in driver.image_names()? {
        if Some(name) != ours {
            driver.remove_image(&name)?;
        }
    }
    Ok(())
}
