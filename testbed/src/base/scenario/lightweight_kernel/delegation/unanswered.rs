//! A kernel that does not answer when the base faults on a page of a program in the middle of a
//! call: no other call waits for it, and the call ends.

use std::fs;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use insula_abi::lwk::{ANSWER_FAULT, ANSWER_RESULT, request};
use insula_abi::{Hello, ioctl};
use insula_driver::name::Name;
use nix::errno::Errno;
use nix::libc;
use zerocopy::IntoBytes;

use super::fake_lwk::FakeLwk;
use super::fake_program::{DEMAND, Program};
use super::process_faults::{self, Read};
use super::{NODE, end, exec};
use crate::base::Finding;
use crate::base::support::insula_command::assert_equal;

/// Time after which the base must have given up.
const TIMEOUT: Duration = Duration::from_secs(100);

/// Time limit of other operations meanwhile: less than the base waits for a page.
const OTHERS_TIMEOUT: Duration = Duration::from_secs(10);

/// A program with two threads in such calls.
pub(super) struct Unanswered<'a> {
    program: Program<'a>,
    slot: u64,
    /// Slot of the other thread, whose call is about the node itself.
    second: u64,
    /// Sequence number of the call.
    sequence: u64,
    asked: Instant,
    /// Another process that reads the program's memory.
    reader: JoinHandle<Read>,
}

impl<'a> Unanswered<'a> {
    /// Starts the call, and checks that readers of the process, and changes of its memory, do not
    /// wait for the page.
    pub(super) fn start(fake: &'a FakeLwk) -> Result<Self, Finding> {
        let program = fake.exec(&mut exec("0"))?;
        let slot = program.first_slot()?;
        let other = program.call(slot, request::THREAD, &[])?.value;
        let sequence = program.post(slot, libc::SYS_getrandom as u64, &[DEMAND.start, 8, 0])?;
        program.wait(slot, sequence)?;
        assert_equal("the answer", &program.answer(slot)?.0, &ANSWER_FAULT)?;
        let asked = Instant::now();
        // brk takes the lock of the address space exclusively, and so would wait for all holders.
        let brk = program.call(other, libc::SYS_brk as u64, &[0])?.result;
        Finding::unless(brk > 0, || format!("brk: {brk}"))?;
        fs::read(format!("/proc/{}/cmdline", program.child.id()))?;
        assert_equal(
            "the answer by then",
            &program.answer(slot)?.0,
            &ANSWER_FAULT,
        )?;
        call_about_the_node(fake, &program, other)?;
        let reader = process_faults::reader(&program, DEMAND.start + 0x2_0000);
        process_faults::is_asked(&program)?;
        Ok(Self {
            program,
            slot,
            second: other,
            sequence,
            asked,
            reader,
        })
    }

    /// The call ends without the page; a late answer changes nothing.
    pub(super) fn ends(self) -> Result<(), Finding> {
        let efault = -(Errno::EFAULT as i64);
        for slot in [self.slot, self.second] {
            let answer = self.result(slot)?;
            assert_equal("a call without its page", &answer, &efault)?;
        }
        let range = Duration::from_secs(15)..TIMEOUT;
        process_faults::ends_without(self.reader, range)?;
        self.program
            .post_unanswered(self.second, request::THREAD_END, 0)?;
        let late = self.program.post(self.slot, request::RESOLVED, &[0])?;
        assert_equal("sequence numbers", &late, &(self.sequence + 1))?;
        self.program.wait(self.slot, late)?;
        let again = self.program.answer(self.slot)?;
        assert_equal("the answer then", &again, &(ANSWER_RESULT, efault))?;
        let pid = i64::from(self.program.child.id());
        let outcome = self.program.call(self.slot, libc::SYS_getpid as u64, &[])?;
        assert_equal("getpid", &outcome.result, &pid)?;
        end(self.program, self.slot, 0, |status| status.success())
    }

    /// Final result of a call.
    fn result(&self, slot: u64) -> Result<i64, Finding> {
        loop {
            let (kind, result) = self.program.answer(slot)?;
            if kind == ANSWER_RESULT {
                return Ok(result);
            }
            Finding::unless(self.asked.elapsed() < TIMEOUT, || {
                "the base waits for a page for ever".into()
            })?;
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// The program makes a call about its own node, with an argument that is not answered. Readers of
/// the node do not wait for that: nothing of the node is locked while its memory is read.
fn call_about_the_node(fake: &FakeLwk, program: &Program<'_>, slot: u64) -> Result<(), Finding> {
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
        let result = program.call(slot, number as u64, arguments)?.result;
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
    let sequence = program.post(slot, libc::SYS_ioctl as u64, &asked)?;
    program.wait(slot, sequence)?;
    assert_equal("the answer", &program.answer(slot)?.0, &ANSWER_FAULT)?;
    let began = Instant::now();
    fake.node.info()?;
    Finding::unless(began.elapsed() < OTHERS_TIMEOUT, || {
        "the node was locked while its own memory was waited for".into()
    })?;
    assert_equal("by then", &program.answer(slot)?.0, &ANSWER_FAULT)
}
