//! What a kernel and its processor do most, measured from within a program by the time stamp counter,
//! as lmbench does: the same program on any kernel.

use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::thread;

use insula_driver::tsc;

use crate::inside::{OtherCore, pin};
use crate::probe::{Call, Ticks, call};

/// Turns of a round, and earlier ones that are not counted.
const TURNS: usize = 2000;
const WARM: usize = 200;
const PAGE: usize = 4096;
/// Pages of a round that are touched first by the program.
const PAGES: usize = 2048;
/// Memory for accesses in random order: so much that each misses all caches of translations, and so
/// little that none does.
const LARGE: usize = 64 << 20;
const SMALL: usize = 16 << 10;
/// Accesses that are timed together.
const CHAIN: usize = 1000;

/// A thing to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Primitive {
    /// A system call that does nothing.
    NullCall,
    /// From one thread to another on the same core.
    ContextSwitch,
    /// A byte to another thread on the same core, and one back.
    Pipe,
    /// The first touch of a page.
    PageFault,
    /// An access to memory whose translation is cached nowhere.
    FarMemory,
    /// An access to memory whose translation is cached.
    NearMemory,
    /// An interrupt to the other core, and its answer.
    Ipi,
}

impl Primitive {
    /// All of them; the last needs two cores.
    pub const ALL: [Self; 7] = [
        Self::NullCall,
        Self::ContextSwitch,
        Self::Pipe,
        Self::PageFault,
        Self::FarMemory,
        Self::NearMemory,
        Self::Ipi,
    ];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NullCall => "null-call",
            Self::ContextSwitch => "context-switch",
            Self::Pipe => "pipe",
            Self::PageFault => "page-fault",
            Self::FarMemory => "far-memory",
            Self::NearMemory => "near-memory",
            Self::Ipi => "ipi",
        }
    }

    /// The one of that name.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.name() == name)
    }

    /// Measures a round on the first core.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn measure(self) -> io::Result<Ticks> {
        pin(0, 0)?;
        match self {
            Self::NullCall => call(Call::Getpid),
            Self::ContextSwitch => context_switch(),
            Self::Pipe => pipe(),
            Self::PageFault => Ok(page_fault()),
            Self::FarMemory => Ok(memory(LARGE)),
            Self::NearMemory => Ok(memory(SMALL)),
            Self::Ipi => {
                let other = OtherCore::start(1)?;
                timed(|| Ok(other.interrupt()?))
            }
        }
    }
}

/// Durations of an action.
fn timed(mut action: impl FnMut() -> io::Result<()>) -> io::Result<Ticks> {
    (0..WARM).try_for_each(|_| action())?;
    let mut all = Vec::with_capacity(TURNS);
    for _ in 0..TURNS {
        let began = tsc();
        action()?;
        all.push(tsc() - began);
    }
    Ok(Ticks::of(all))
}

/// Two threads on the core yield to each other: two switches for each call.
fn context_switch() -> io::Result<Ticks> {
    let (done, is_done) = io::pipe()?;
    let other = thread::spawn(move || -> io::Result<()> {
        crate::responder::set_nonblocking(&done)?;
        let mut done = done;
        // The pipe ends when the measurement has.
        while done.read(&mut [0]).is_err() {
            thread::yield_now();
        }
        Ok(())
    });
    let ticks = timed(|| {
        thread::yield_now();
        Ok(())
    });
    drop(is_done);
    let joined = other.join();
    joined.map_err(|_| io::Error::other("the other thread failed"))??;
    ticks
}

fn pipe() -> io::Result<Ticks> {
    let (mut from_other, to_us) = io::pipe()?;
    let (from_us, mut to_other) = io::pipe()?;
    let other = thread::spawn(move || echo(from_us, to_us));
    let mut byte = [7];
    let ticks = timed(|| {
        to_other.write_all(&byte)?;
        from_other.read_exact(&mut byte)
    });
    drop(to_other);
    let joined = other.join();
    joined.map_err(|_| io::Error::other("the other thread failed"))??;
    ticks
}

/// Sends each byte back, until there are no more.
fn echo(mut from: PipeReader, mut to: PipeWriter) -> io::Result<()> {
    let mut byte = [0];
    while from.read(&mut byte)? > 0 {
        to.write_all(&byte)?;
    }
    Ok(())
}

/// Touches new pages one by one.
fn page_fault() -> Ticks {
    // So large that any allocator takes it untouched from the kernel.
    let mut room = vec![0_u8; PAGES * PAGE];
    let touch = |page: &mut [u8]| {
        let began = tsc();
        page[0] = std::hint::black_box(1);
        tsc() - began
    };
    Ticks::of(room.chunks_mut(PAGE).map(touch).collect())
}

/// Follows a chain through all of the memory's cache lines in random order; ticks of an access.
fn memory(size: usize) -> Ticks {
    const LINE: usize = 64 / size_of::<usize>();
    let lines = size / 64;
    let mut order: Vec<usize> = (0..lines).collect();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for index in (1..lines).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        order.swap(index, state as usize % (index + 1));
    }
    let mut chain = vec![0_usize; lines * LINE];
    for (index, &line) in order.iter().enumerate() {
        chain[line * LINE] = order[(index + 1) % lines] * LINE;
    }
    let mut at = 0;
    let mut follow = || {
        let began = tsc();
        for _ in 0..CHAIN {
            at = std::hint::black_box(chain[at]);
        }
        (tsc() - began) / CHAIN as u64
    };
    Ticks::of((0..TURNS / 10).map(|_| follow()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_takes_time() {
        for primitive in Primitive::ALL {
            assert_eq!(Primitive::of(primitive.name()), Some(primitive));
            // A test's computer may have one core only.
            if primitive != Primitive::Ipi {
                let measured = thread::spawn(move || primitive.measure());
                let ticks = measured.join().unwrap().unwrap();
                assert!(
                    ticks.median > 0 && ticks.median <= ticks.p99,
                    "{primitive:?} {ticks:?}"
                );
            }
        }
    }
}
