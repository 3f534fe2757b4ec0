//! A kernel that does not answer when the base needs a page of a program in the middle of a call: nobody
//! else waits for it, and the call ends.

use std::fs;
use std::time::{Duration, Instant};

use insula::name::Name;
use insula_abi::lwk::{ANSWER_FAULT, ANSWER_RESULT, request};
use insula_abi::{Hello, ioctl};
use nix::errno::Errno;
use nix::libc;
use zerocopy::IntoBytes;

use super::super::Finding;
use super::super::fake_lwk::{DEMAND, FakeLwk, Program};
use super::super::insula_command::assert_equal;
use super::{NODE, end, exec};

/// How long the base may take to give the page up.
const PATIENCE: Duration = Duration::from_secs(100);

/// How long others may take meanwhile: less than the base waits for a page.
const PROMPT: Duration = Duration::from_secs(10);

/// A program of which two threads are in such calls.
pub(super) struct Unanswered<'a> {
    program: Program<'a>,
    desk: u64,
    /// The other one, whose call is about the node itself.
    second: u64,
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
        ask_about_the_node(fake, &program, other)?;
        Ok(Self {
            program,
            desk,
            second: other,
            turn,
            asked,
        })
    }

    /// The call ends without the page; that it comes at last changes nothing.
    pub(super) fn ends(self) -> Result<(), Finding> {
        let efault = -(Errno::EFAULT as i64);
        for desk in [self.desk, self.second] {
            let answer = self.result(desk)?;
            assert_equal("a call without its page", &answer, &efault)?;
        }
        self.program
            .last_turn(self.second, request::THREAD_END, 0)?;
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

    /// What a call answers at last.
    fn result(&self, desk: u64) -> Result<i64, Finding> {
        loop {
            let (kind, result) = self.program.answer(desk)?;
            if kind == ANSWER_RESULT {
                return Ok(result);
            }
            Finding::unless(self.asked.elapsed() < PATIENCE, || {
                "the base waits for a page for ever".into()
            })?;
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// The program asks for something about its own node, by an argument that does not come. Whoever looks
/// at the node does not wait for that: nothing of the node is locked while its memory is read.
fn ask_about_the_node(fake: &FakeLwk, program: &Program<'_>, desk: u64) -> Result<(), Finding> {
    let (path, hello, name, argument) = (
        DEMAND.start + 0x1_0000,
        DEMAND.start + 0x1_0800,
        DEMAND.start + 0x1_1000,
        DEMAND.start + 0x1_2000,
    );
    program.write(path, b"/dev/insula\0")?;
    program.write(hello, Hello::default().as_bytes())?;
    program.write(name, &NODE.parse::<Name>()?.to_abi().name)?;
    let call = |number: i64, arguments: &[u64]| {
        let result = program.call(desk, number as u64, arguments)?.result;
        Finding::unless(result >= 0, || format!("call {number}: {result}"))?;
        Ok::<_, Finding>(result.cast_unsigned())
    };
    let here = i64::from(libc::AT_FDCWD).cast_unsigned();
    let control = call(libc::SYS_openat, &[here, path, libc::O_RDWR as u64, 0])?;
    call(libc::SYS_ioctl, &[control, u64::from(ioctl::HELLO), hello])?;
    let node = call(
        libc::SYS_ioctl,
        &[control, u64::from(ioctl::NODE_OPEN), name],
    )?;
    let asked = [node, u64::from(ioctl::NODE_SUPERVISE), argument];
    let turn = program.post(desk, libc::SYS_ioctl as u64, &asked)?;
    program.wait(desk, turn)?;
    assert_equal("the answer", &program.answer(desk)?.0, &ANSWER_FAULT)?;
    let began = Instant::now();
    fake.node.info()?;
    Finding::unless(began.elapsed() < PROMPT, || {
        "the node was locked while its own memory was waited for".into()
    })?;
    assert_equal("by then", &program.answer(desk)?.0, &ANSWER_FAULT)
}
