//! Faults of a process: another process reads the program's memory, and the kernel maps the page,
//! denies it, maps it late, or never answers.

use std::mem::offset_of;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use insula_abi::lwk::{FAULTS, Fault, FaultAnswer, PAGE_SIZE, Process};
use nix::errno::Errno;
use nix::libc;

use super::fake_lwk::FakeLwk;
use super::fake_program::{DEMAND, Program};
use super::{AWAKE, MIB, end, exec};
use crate::base::Finding;
use crate::base::support::insula_command::{assert_equal, wait_for};

/// Pages that nothing else uses.
const PAGES: u64 = DEMAND.start + 8 * MIB;
/// How often the base asks for a page that it does not find.
const ATTEMPTS: u32 = 8;
/// More readers than the base asks for at a time.
const READERS: u64 = 3 * FAULTS as u64;

/// A fault that the base waits for.
#[derive(Clone, Copy, Debug)]
struct Asked {
    entry: usize,
    sequence: u64,
    address: u64,
}

impl Asked {
    fn word(self, field: usize) -> usize {
        offset_of!(Process, faults) + self.entry * size_of::<Fault>() + field
    }

    fn answer_word(self, field: usize) -> usize {
        offset_of!(Process, answers) + self.entry * size_of::<FaultAnswer>() + field
    }

    fn find(program: &Program<'_>) -> Result<Option<Self>, Finding> {
        for entry in 0..FAULTS {
            let mut asked = Self {
                entry,
                sequence: 0,
                address: 0,
            };
            asked.sequence = program.get(asked.word(offset_of!(Fault, sequence)))?;
            asked.address = program.get(asked.word(offset_of!(Fault, address)))?;
            let answered = program.get(asked.answer_word(offset_of!(FaultAnswer, sequence)))?;
            if asked.sequence != answered {
                return Ok(Some(asked));
            }
        }
        Ok(None)
    }

    fn wait(program: &Program<'_>) -> Result<Self, Finding> {
        wait_for("a fault of the process", || Self::find(program))
    }

    fn answer(self, program: &Program<'_>, error: i64) -> Result<(), Finding> {
        let set = |field, value| program.set(self.answer_word(field), value);
        set(offset_of!(FaultAnswer, error), error.cast_unsigned())?;
        set(offset_of!(FaultAnswer, sequence), self.sequence)?;
        program.fake.ring()
    }

    fn is_looked_up(self, program: &Program<'_>) -> Result<bool, Finding> {
        let looked_up = program.get(self.word(offset_of!(Fault, looked_up)))?;
        Ok(looked_up == self.sequence)
    }
}

/// A read of a word of a program's memory, and for how long it lasted.
pub(super) type Read = (Result<u64, Errno>, Duration);

/// Reads a word, in a thread of this process.
pub(super) fn reader(program: &Program<'_>, address: u64) -> JoinHandle<Read> {
    let pid = program.child.id().cast_signed();
    std::thread::spawn(move || {
        let began = Instant::now();
        (read_word(pid, address), began.elapsed())
    })
}

#[expect(unsafe_code, reason = "the C library's call takes pointers")]
fn read_word(pid: i32, address: u64) -> Result<u64, Errno> {
    let mut word = 0_u64;
    let local = libc::iovec {
        iov_base: (&raw mut word).cast(),
        iov_len: 8,
    };
    let remote = libc::iovec {
        iov_base: std::ptr::without_provenance_mut(address as usize),
        iov_len: 8,
    };
    // SAFETY: it writes the word alone.
    let read = unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) };
    Errno::result(read).map(|_| word)
}

/// Waits until the base has asked for one page, and rung.
pub(super) fn is_asked(program: &Program<'_>) -> Result<(), Finding> {
    Asked::wait(program)?;
    let number = program.number();
    let is_rung = || Ok(program.fake.clear_pending(number)?.then_some(()));
    wait_for("the process to be pending", is_rung)
}

/// A read ends without its word, after a time.
pub(super) fn ends_without(
    reader: JoinHandle<Read>,
    range: std::ops::Range<Duration>,
) -> Result<(), Finding> {
    let read = reader.join();
    let (read, lasted) = read.map_err(|_| Finding::new("reading failed"))?;
    assert_equal("a word without its page", &read, &Err(Errno::EFAULT))?;
    Finding::unless(range.contains(&lasted), || {
        format!("the base waited {lasted:?} for a page")
    })
}

/// Returns what was read.
fn joined(reader: JoinHandle<Read>) -> Result<Result<u64, Errno>, Finding> {
    let read = reader.join();
    let (read, _) = read.map_err(|_| Finding::new("reading failed"))?;
    Ok(read)
}

pub(super) fn play(fake: &FakeLwk) -> Result<(), Finding> {
    let program = fake.exec(&mut exec(AWAKE))?;
    let slot = program.first_slot()?;
    is_resolved(&program)?;
    is_denied(&program)?;
    is_found_late(&program)?;
    is_never_found(&program)?;
    are_many(&program)?;
    is_asked_in_a_call(&program, slot)?;
    // Else it would seem to be another one that starts.
    fake.clear_pending(program.number())?;
    end(program, slot, 0, |status| status.success())
}

fn is_resolved(program: &Program<'_>) -> Result<(), Finding> {
    let reader = reader(program, PAGES + 16);
    let asked = Asked::wait(program)?;
    assert_equal("the address", &asked.address, &PAGES)?;
    assert_equal("looked up", &asked.is_looked_up(program)?, &false)?;
    program.write(PAGES + 16, &7_u64.to_ne_bytes())?;
    asked.answer(program, 0)?;
    assert_equal("a word", &joined(reader)?, &Ok(7))?;
    assert_equal("looked up then", &asked.is_looked_up(program)?, &true)
}

fn is_denied(program: &Program<'_>) -> Result<(), Finding> {
    for _ in 0..2 {
        let reader = reader(program, PAGES + MIB);
        Asked::wait(program)?.answer(program, -(Errno::EFAULT as i64))?;
        assert_equal(
            "a word that is denied",
            &joined(reader)?,
            &Err(Errno::EFAULT),
        )?;
    }
    Ok(())
}

fn is_found_late(program: &Program<'_>) -> Result<(), Finding> {
    let place = PAGES + 2 * MIB;
    let reader = reader(program, place);
    for asked in 1..=5 {
        let fault = Asked::wait(program)?;
        if asked == 5 {
            program.write(place, &5_u64.to_ne_bytes())?;
        }
        fault.answer(program, 0)?;
    }
    assert_equal("a word that is found late", &joined(reader)?, &Ok(5))
}

/// A kernel that lies does not keep the base for ever.
fn is_never_found(program: &Program<'_>) -> Result<(), Finding> {
    let reader = reader(program, PAGES + 3 * MIB);
    for _ in 0..ATTEMPTS {
        Asked::wait(program)?.answer(program, 0)?;
    }
    assert_equal(
        "a word that is not there",
        &joined(reader)?,
        &Err(Errno::EFAULT),
    )
}

/// More readers than entries: each gets its word.
fn are_many(program: &Program<'_>) -> Result<(), Finding> {
    let place = |reader: u64| PAGES + 4 * MIB + reader * 16 * PAGE_SIZE;
    let readers: Vec<_> = (0..READERS)
        .map(|number| reader(program, place(number)))
        .collect();
    while !readers.iter().all(JoinHandle::is_finished) {
        let Some(fault) = Asked::find(program)? else {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        program.write(fault.address, &fault.address.to_ne_bytes())?;
        fault.answer(program, 0)?;
    }
    for (number, reader) in (0..READERS).zip(readers) {
        assert_equal("one of many", &joined(reader)?, &Ok(place(number)))?;
    }
    Ok(())
}

/// A call of the program still asks in its slot.
fn is_asked_in_a_call(program: &Program<'_>, slot: u64) -> Result<(), Finding> {
    let arguments = [PAGES + 8 * MIB - PAGE_SIZE * 2, 8, 0];
    let random = program.call(slot, libc::SYS_getrandom as u64, &arguments)?;
    assert_equal("getrandom", &random.result, &8)?;
    assert_equal("its faults", &random.remote_faults, &1)?;
    assert_equal("of the process", &Asked::find(program)?.is_none(), &true)
}
