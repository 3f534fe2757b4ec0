//! A kernel that does not answer when the base needs a page of a program in the middle of a call: nobody
//! else waits for it, and the call ends.

use std::fs;
use std::time::{Duration, Instant};

use insula_abi::lwk::{ANSWER_FAULT, ANSWER_RESULT, request};
use nix::errno::Errno;
use nix::libc;

use super::super::Finding;
use super::super::fake_lwk::{DEMAND, FakeLwk, Program};
use super::super::insula_command::assert_equal;
use super::{end, exec};

/// How long the base may take to give the page up.
const PATIENCE: Duration = Duration::from_secs(100);

/// A program of which a thread is in such a call.
pub(super) struct Unanswered<'a> {
    program: Program<'a>,
    desk: u64,
    /// The turn that asked for the call.
    turn: u64,
    asked: Instant,
}

impl<'a> Unanswered<'a> {
    /// Begins the call, and sees that whoever looks at the process, or changes its memory, does not wait
    /// for the page.
    pub(super) fn begin(fake: &'a FakeLwk) -> Result<Self, Finding> {
        let program = fake.begin(&mut exec("0"))?;
        let desk = program.first_desk()?;
        let other = program.call(desk, request::THREAD, &[])?.value;
        let turn = program.post(desk, libc::SYS_getrandom as u64, &[DEMAND.start, 8, 0])?;
        program.wait(desk, turn)?;
        assert_equal("the answer", &program.answer(desk)?.0, &ANSWER_FAULT)?;
        let asked = Instant::now();
        // It takes the lock of the address space for itself: nobody else would get it any more.
        let brk = program.call(other, libc::SYS_brk as u64, &[0])?.result;
        Finding::unless(brk > 0, || format!("brk: {brk}"))?;
        fs::read(format!("/proc/{}/cmdline", program.child.id()))?;
        assert_equal(
            "the answer by then",
            &program.answer(desk)?.0,
            &ANSWER_FAULT,
        )?;
        program.last_turn(other, request::THREAD_END, 0)?;
        Ok(Self {
            program,
            desk,
            turn,
            asked,
        })
    }

    /// The call ends without the page; that it comes at last changes nothing.
    pub(super) fn ends(self) -> Result<(), Finding> {
        let efault = -(Errno::EFAULT as i64);
        let answer = loop {
            let (kind, result) = self.program.answer(self.desk)?;
            if kind == ANSWER_RESULT {
                break result;
            }
            Finding::unless(self.asked.elapsed() < PATIENCE, || {
                "the base waits for a page for ever".into()
            })?;
            std::thread::sleep(Duration::from_millis(100));
        };
        assert_equal("a call without its page", &answer, &efault)?;
        let late = self.program.post(self.desk, request::RESOLVED, &[0])?;
        assert_equal("turns", &late, &(self.turn + 1))?;
        self.program.wait(self.desk, late)?;
        let again = self.program.answer(self.desk)?;
        assert_equal("the answer then", &again, &(ANSWER_RESULT, efault))?;
        let pid = i64::from(self.program.child.id());
        let outcome = self.program.call(self.desk, libc::SYS_getpid as u64, &[])?;
        assert_equal("getpid", &outcome.result, &pid)?;
        end(self.program, self.desk, 0, |status| status.success())
    }
}
