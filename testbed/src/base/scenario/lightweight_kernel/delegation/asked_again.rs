//! Pages that the base asks for in the middle of a call, and finds only later.

use std::time::Duration;

use insula_abi::lwk::{ANSWER_FAULT, ANSWER_RESULT, PAGE_SIZE, request};
use nix::libc;

use super::fake_lwk::FakeLwk;
use super::fake_program::{DEMAND, Program};
use super::{AWAKE, MIB, end, exec};
use crate::base::Finding;
use crate::base::support::insula_command::{assert_equal, wait_for};

/// Page of the program that nothing else uses.
const PAGE: u64 = DEMAND.start + 4 * MIB;
/// Bytes that a call receives one by one, each in a page that it has to ask for: more often than
/// the base asks for a page in vain.
const BYTES: u64 = 20;

/// A kernel unmaps a page again before the base has looked it up, and after.
pub(super) fn play(fake: &FakeLwk) -> Result<(), Finding> {
    let program = fake.exec(&mut exec(AWAKE))?;
    let slot = program.first_slot()?;
    is_found_late(&program, slot)?;
    is_lost_again(&program, slot)?;
    end(program, slot, 0, |status| status.success())
}

/// The page is missing a few times although the fault is resolved. The slot says all the time that
/// the base has not found it.
fn is_found_late(program: &Program<'_>, slot: u64) -> Result<(), Finding> {
    let mut sequence = program.post(slot, libc::SYS_getrandom as u64, &[PAGE, 8, 0])?;
    for asked in 1..=5 {
        program.wait(slot, sequence)?;
        assert_equal("the answer", &program.answer(slot)?.0, &ANSWER_FAULT)?;
        assert_equal("faulting", &program.is_faulting(slot)?, &true)?;
        if asked == 5 {
            program.frame(PAGE)?;
        }
        sequence = program.post(slot, request::RESOLVED, &[0])?;
    }
    program.wait(slot, sequence)?;
    assert_equal("the answer", &program.answer(slot)?, &(ANSWER_RESULT, 8))?;
    assert_equal("faulting", &program.is_faulting(slot)?, &false)
}

/// The page is unmapped each time that the call has written to it.
fn is_lost_again(program: &Program<'_>, slot: u64) -> Result<(), Finding> {
    let sender = program.call(slot, request::THREAD, &[])?.value;
    let (sockets, byte) = (DEMAND.start, DEMAND.start + 64);
    let stream = [libc::AF_UNIX as u64, libc::SOCK_STREAM as u64, 0, sockets];
    let made = program.call(sender, libc::SYS_socketpair as u64, &stream)?;
    assert_equal("socketpair", &made.result, &0)?;
    let pair = program.read(sockets, 8)?;
    let [from, to] = [0, 4].map(|at| u64::from(pair[at]));
    program.write(byte, b"x")?;
    unmap(program, sender, 1)?;
    let arguments = [from, PAGE, BYTES, libc::MSG_WAITALL as u64, 0, 0];
    let received = std::thread::scope(|scope| {
        let receive = scope.spawn(|| program.call(slot, libc::SYS_recvfrom as u64, &arguments));
        let sent = (2..2 + BYTES).try_for_each(|ticket| {
            let written = program.call(sender, libc::SYS_write as u64, &[to, byte, 1])?;
            assert_equal("write", &written.result, &1)?;
            let found = || {
                let is_found = program.is_mapped(PAGE)? && !program.is_faulting(slot)?;
                Ok((is_found || receive.is_finished()).then_some(()))
            };
            wait_for("the page to be found", found)?;
            std::thread::sleep(Duration::from_millis(2));
            unmap(program, sender, ticket)
        });
        let received = receive
            .join()
            .map_err(|_| Finding::new("receiving failed"))?;
        sent.and(received)
    })?;
    assert_equal("recvfrom", &received.result, &BYTES.cast_signed())?;
    let faults = u64::from(received.remote_faults);
    Finding::unless(faults >= BYTES, || format!("{faults} remote faults"))?;
    program.post_unanswered(sender, request::THREAD_END, 0)
}

/// Unmaps the page, and has the base invalidate it.
fn unmap(program: &Program<'_>, slot: u64, ticket: u64) -> Result<(), Finding> {
    let frames = program.unmap(PAGE..PAGE + PAGE_SIZE)?;
    let arguments = [PAGE, PAGE_SIZE, ticket, 0];
    let invalidated = program.call(slot, request::INVALIDATE, &arguments)?;
    assert_equal("an invalidation", &invalidated.result, &0)?;
    program.fake.free_frames(frames);
    Ok(())
}
