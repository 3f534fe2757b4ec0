//! The base's part of delegation, against a simulated lightweight kernel, and against the real one.

mod asked_again;
mod fake_lwk;
mod fake_program;
mod process_faults;
mod real;
mod unanswered;
mod unmapping;
mod unresponsive;

use std::fs::{self, File};
use std::io::Read;
use std::mem::offset_of;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use insula_abi::lwk::{
    DelegationPlace, LWK_MAGIC, PAGE_SIZE, PAGES_MAX, PAGES_MIN, Process, QUEUE, base_state,
    process_state, request,
};
use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::base::support::insula_command::{
    assert_equal, command, insula, try_insula, wait_for, with_cleanup,
};
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;
use fake_lwk::FakeLwk;
use fake_program::{DEMAND, Outcome, Program, READ_ONLY};
use unanswered::Unanswered;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "delegation",
    proves: "a proxy executes a program's calls in the program's own pages, and releases them on request",
    machine: Shape::USUAL,
    module: Module::Loaded,
    bases: &[Flavour::V6_1],
    limit: Duration::from_secs(400),
    soak_limit: Some(Duration::from_secs(1800)),
    play,
};

const NODE: &str = "fake";
/// File that is larger than what is read of it.
const LARGE_FILE: &str = "/payload/bin/insula";
/// File on a disk, so that it can be read past the page cache.
const DISK_FILE: &str = "/var/tmp/direct";
const MIB: u64 = 1 << 20;

fn play(context: &Context) -> Result<(), Finding> {
    with_cleanup(|| {
        let fake = FakeLwk::start(NODE, 3)?;
        refusals(&fake)?;
        fake.accept_programs()?;
        let unanswered = Unanswered::start(&fake)?;
        calls(&fake)?;
        threads(&fake)?;
        own_records(&fake)?;
        sleeping(&fake)?;
        asked_again::play(&fake)?;
        process_faults::play(&fake)?;
        unmapping::play(&fake, context.count(20, 2000))?;
        killed(&fake)?;
        unanswered.ends()?;
        node_ends(&fake)?;
        drop(fake);
        insula(&["rm", "--force", NODE])?;
        unresponsive::play()?;
        real::play(context.count(20, 2000))
    })
}

/// Command that runs a program. Its proxy polls without sleeping, unless `polls` says otherwise.
fn exec(polls: &str) -> Command {
    let mut exec = command(&[
        "exec",
        "--polls",
        polls,
        NODE,
        "--",
        "/bin/true",
        "a",
        "b c",
    ]);
    exec.env_clear()
        .env("PATH", "/payload/bin:/usr/bin:/bin")
        .env("WHO", "me");
    exec.stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    exec
}

const AWAKE: &str = "1000000000000";

fn refusals(fake: &FakeLwk) -> Result<(), Finding> {
    assert_equal("the area's magic", &fake.magic()?, &LWK_MAGIC)?;
    let good = fake.place();
    for (bad, errno) in [
        (
            DelegationPlace {
                pages: PAGES_MIN - 1,
                ..good
            },
            Errno::EINVAL,
        ),
        (
            DelegationPlace {
                pages: PAGES_MAX + 1,
                ..good
            },
            Errno::EINVAL,
        ),
        (
            DelegationPlace {
                start: good.start + 8,
                ..good
            },
            Errno::EINVAL,
        ),
        (DelegationPlace { start: 0, ..good }, Errno::EINVAL),
        (
            DelegationPlace {
                reserved: 1,
                ..good
            },
            Errno::EINVAL,
        ),
        (good, Errno::EBUSY),
    ] {
        let answer = fake
            .node
            .lay_out_delegation(bad)
            .err()
            .map(|error| error.errno);
        assert_equal(&format!("{bad:x?}"), &answer, &Some(errno))?;
    }
    let create_mirror = |range| {
        fake.node
            .create_mirror(range)
            .err()
            .map(|error| error.errno)
    };
    assert_equal(
        "a kernel that accepts no programs",
        &create_mirror(0x1000..0x2000),
        &Some(Errno::EAGAIN),
    )?;
    fake.accept_programs()?;
    for bad in [0x1000..0x1000, 0x1001..0x3000, 0x1000..(1 << 47) + 0x1000] {
        assert_equal(
            &format!("{bad:x?}"),
            &create_mirror(bad.clone()),
            &Some(Errno::EINVAL),
        )?;
    }
    try_insula(&["exec", NODE, "--", "no-such-program"])?.refused(127, &["no-such-program"])?;
    try_insula(&["exec", NODE, "--", "/etc/passwd"])?.refused(126, &["/etc/passwd"])?;
    try_insula(&["exec", "nobody", "--", "/bin/true"])?.refused(125, &["nobody"])
}

/// Calls with pointers to mapped memory, to memory that is faulted in, and to invalid addresses.
fn calls(fake: &FakeLwk) -> Result<(), Finding> {
    let mut program = fake.exec(&mut exec(AWAKE))?;
    let slot = program.first_slot()?;
    starts_with_its_arguments(&program, slot)?;
    let call =
        |number: i64, arguments: &[u64]| program.call(slot, number.cast_unsigned(), arguments);
    let result = |outcome: Outcome| outcome.result;
    let pid = i64::from(program.child.id());
    assert_equal("getpid", &call(libc::SYS_getpid, &[]).map(result)?, &pid)?;
    let path = DEMAND.start;
    program.write(path, format!("{LARGE_FILE}\0").as_bytes())?;
    let file = call(libc::SYS_open, &[path, 0, 0])?.result.cast_unsigned();
    let buffer = DEMAND.start + 0x10_0123;
    let size = 300_000;
    let read = call(libc::SYS_read, &[file, buffer, size])?;
    assert_equal("read", &read.result, &size.cast_signed())?;
    let mut expected = vec![0; size as usize];
    File::open(LARGE_FILE)?.read_exact(&mut expected)?;
    let same = program.read(buffer, expected.len())? == expected;
    Finding::unless(same, || "other bytes were read than are in the file".into())?;
    let again = call(libc::SYS_pread64, &[file, buffer, size, 0])?;
    assert_equal("remote faults on mapped pages", &again.remote_faults, &0)?;
    let efault = -(Errno::EFAULT as i64);
    for wild in [
        0,
        8,
        DEMAND.start - 8,
        DEMAND.end,
        READ_ONLY,
        1 << 47,
        u64::MAX - 4096,
    ] {
        let answer = call(libc::SYS_pread64, &[file, wild, 4096, 0]).map(result)?;
        assert_equal(&format!("read to {wild:#x}"), &answer, &efault)?;
    }
    // Pointers within a structure; one of them to memory that may only be read.
    let hello = DEMAND.start + 0x2000;
    program.write(hello, b"hello, ")?;
    let vector = [hello, 7, READ_ONLY, 5].map(u64::to_le_bytes).concat();
    program.write(hello + 64, &vector)?;
    let written = call(libc::SYS_writev, &[1, hello + 64, 2]).map(result)?;
    assert_equal("writev", &written, &12)?;
    let mut output = [0; 12];
    let stdout = program
        .child
        .stdout
        .as_mut()
        .ok_or_else(|| Finding::new("no output"))?;
    stdout.read_exact(&mut output)?;
    assert_equal(
        "output",
        &output.as_slice(),
        &b"hello, \0\0\0\0\0".as_slice(),
    )?;
    copies_on_write(&mut program, slot)?;
    let exe = fs::read_link(format!("/proc/{pid}/exe"))?;
    Finding::unless(!exe.ends_with("insula"), || {
        format!("it is known as {}", exe.display())
    })?;
    end(program, slot, 7 << 8, |status| status.code() == Some(7))
}

/// A page that is copied on write has to be copied before a call reads it: nothing of the base uses
/// its former frame.
fn copies_on_write(program: &mut Program, slot: u64) -> Result<(), Finding> {
    let page = DEMAND.start + 0x30_0000;
    program.write(page, b"shared")?;
    let former = program.copy_on_write(page)?;
    for remote_faults in [1, 0] {
        let written = program.call(slot, libc::SYS_write as u64, &[1, page, 6])?;
        assert_equal("bytes written", &written.result, &6)?;
        assert_equal("remote faults", &written.remote_faults, &remote_faults)?;
        // Another owner writes to it.
        program.fake.fill(former, u64::MAX)?;
    }
    let mut output = [0; 12];
    let stdout = program.child.stdout.as_mut();
    let stdout = stdout.ok_or_else(|| Finding::new("no output"))?;
    stdout.read_exact(&mut output)?;
    assert_equal("output", &output.as_slice(), &b"sharedshared".as_slice())
}

fn starts_with_its_arguments(program: &Program, slot: u64) -> Result<(), Finding> {
    let size = program.get(offset_of!(Process, arguments_size))?;
    let block = DEMAND.start + PAGE_SIZE - 16;
    let given = program.call(slot, request::ARGUMENTS, &[block, size + 100])?;
    assert_equal("size of arguments", &given.result, &size.cast_signed())?;
    let text = program.read(block, size as usize)?;
    let expected =
        "/bin/true\x003\x002\x000\0/bin/true\0a\0b c\0PATH=/payload/bin:/usr/bin:/bin\0WHO=me\0";
    assert_equal(
        "arguments",
        &String::from_utf8_lossy(&text).into_owned(),
        &expected.to_owned(),
    )
}

/// Ends a program, whose proxy must end in the same way.
fn end(
    mut program: Program,
    slot: u64,
    status: u64,
    expected: impl Fn(ExitStatus) -> bool,
) -> Result<(), Finding> {
    program.post_unanswered(slot, request::EXIT, status)?;
    let ended = wait_for_end(&mut program.child)?;
    Finding::unless(expected(ended), || {
        format!("status {status:#x} became {ended}")
    })?;
    program.finish()
}

fn wait_for_end(child: &mut Child) -> Result<ExitStatus, Finding> {
    wait_for("the proxy to end", || Ok(child.try_wait()?))
}

/// A second thread, whose call blocks and is cancelled; signals.
fn threads(fake: &FakeLwk) -> Result<(), Finding> {
    let program = fake.exec(&mut exec(AWAKE))?;
    let first = program.first_slot()?;
    let thread = program.call(first, request::THREAD, &[])?;
    Finding::unless(thread.result > 0, || format!("no thread: {thread:?}"))?;
    let second = thread.value;
    let gettid = program.call(second, libc::SYS_gettid as u64, &[])?;
    assert_equal("gettid", &gettid.result, &thread.result)?;
    let eintr = -(Errno::EINTR as i64);
    for _ in 0..3 {
        std::thread::scope(|scope| {
            let read =
                scope.spawn(|| program.call(second, libc::SYS_read as u64, &[0, DEMAND.start, 1]));
            let cancelled = || {
                program.cancel(second)?;
                Ok(read.is_finished().then_some(()))
            };
            wait_for("a blocked call to be cancelled", cancelled)?;
            let read = read.join().map_err(|_| Finding::new("reading failed"))??;
            assert_equal("a cancelled call", &read.result, &eintr)
        })?;
    }
    cancelled_at_once(&program, first)?;
    let pid = Pid::from_raw(program.child.id().cast_signed());
    signals(&program, pid)?;
    program.post_unanswered(second, request::THREAD_END, 0)?;
    let alone = || Ok((fs::read_dir(format!("/proc/{pid}/task"))?.count() == 1).then_some(()));
    wait_for("the thread to end", alone)?;
    end(program, first, Signal::SIGTERM as u64, |status| {
        status.signal() == Some(Signal::SIGTERM as i32)
    })
}

/// Signals are passed on with their information. When there is no room for it any more, only their
/// numbers are.
fn signals(program: &Program, pid: Pid) -> Result<(), Finding> {
    /// A real-time signal: it is queued.
    const QUEUED: i32 = 40;
    let word = |field: usize, wanted: u64, what: &str| {
        wait_for(what, || Ok((program.get(field)? == wanted).then_some(())))
    };
    let queued = |wanted| {
        word(
            offset_of!(Process, signals_queued),
            wanted,
            "signals to be passed on",
        )
    };
    kill(pid, Signal::SIGUSR1)?;
    queued(1)?;
    kill(pid, Signal::SIGINT)?;
    queued(2)?;
    let own = u64::from(std::process::id());
    for (number, index) in [(Signal::SIGUSR1, 0), (Signal::SIGINT, 1)] {
        let at = offset_of!(Process, queue) + index * size_of::<insula_abi::lwk::Signal>();
        let found = [at, at + 8, at + 16].map(|at| program.get(at));
        let [signal, code, sender] = found;
        let low = |word: Result<u64, Finding>| Ok::<_, Finding>(word? & u64::from(u32::MAX));
        let found = [low(signal)?, low(code)?, low(sender)?];
        assert_equal("a signal", &found, &[number as u64, 0, own])?;
    }
    let all = format!(
        "for n in $(seq {}); do kill -{QUEUED} {pid}; done",
        QUEUE - 1
    );
    let sent = Command::new("sh").args(["-c", &all]).status()?;
    assert_equal("sending signals", &sent.success(), &true)?;
    queued(QUEUE as u64)?;
    let bit = 1 << (QUEUED - 1);
    word(
        offset_of!(Process, signals_overflow),
        bit,
        "signals without room",
    )
}

/// New threads whose first call is cancelled before the proxy's thread has attached, or just then.
fn cancelled_at_once(program: &Program, first: u64) -> Result<(), Finding> {
    for _ in 0..20 {
        let slot = program.call(first, request::THREAD, &[])?.value;
        let read = [0, DEMAND.start, 1];
        let result = program.call_cancelled(slot, libc::SYS_read as u64, &read)?;
        let eintr = -(Errno::EINTR as i64);
        assert_equal("a cancelled first call", &result, &eintr)?;
        program.post_unanswered(slot, request::THREAD_END, 0)?;
    }
    Ok(())
}

/// The kernel overwrites the base's own words with values that would end a live process: the base
/// relies on its own records.
fn own_records(fake: &FakeLwk) -> Result<(), Finding> {
    let program = fake.exec(&mut exec(AWAKE))?;
    let slot = program.first_slot()?;
    program.set(offset_of!(Process, base_state), base_state::QUIESCED)?;
    program.set(offset_of!(Process, lwk_state), process_state::REAPED)?;
    let other = fake.exec(&mut exec(AWAKE))?;
    Finding::unless(other.number() != program.number(), || {
        "two programs have the same pages".into()
    })?;
    let pid = i64::from(program.child.id());
    let outcome = program.call(slot, libc::SYS_getpid as u64, &[])?;
    assert_equal("getpid", &outcome.result, &pid)?;
    program.set(offset_of!(Process, lwk_state), process_state::ALIVE)?;
    program.set(offset_of!(Process, base_state), base_state::STARTED)?;
    let slot_of_other = other.first_slot()?;
    end(other, slot_of_other, 0, |status| status.success())?;
    end(program, slot, 0, |status| status.success())
}

/// A proxy that sleeps at once is woken for each call.
fn sleeping(fake: &FakeLwk) -> Result<(), Finding> {
    let program = fake.exec(&mut exec("0"))?;
    let (slot, pid) = (program.first_slot()?, i64::from(program.child.id()));
    for _ in 0..5 {
        let outcome = program.call(slot, libc::SYS_getpid as u64, &[])?;
        assert_equal("getpid", &outcome.result, &pid)?;
    }
    end(program, slot, 0, |status| status.success())
}

/// A proxy that is killed in a call ends its program, and no other.
fn killed(fake: &FakeLwk) -> Result<(), Finding> {
    let mut program = fake.exec(&mut exec(AWAKE))?;
    let slot = program.first_slot()?;
    program.frame(DEMAND.start)?;
    program.post_unanswered(slot, libc::SYS_pause as u64, 0)?;
    program.child.kill()?;
    wait_for_end(&mut program.child)?;
    program.finish()?;
    let program = fake.exec(&mut exec(AWAKE))?;
    let slot = program.first_slot()?;
    end(program, slot, 3 << 8, |status| status.code() == Some(3))
}

/// When the node ends, its programs end, whether their proxies poll or sleep, and report the
/// reason.
fn node_ends(fake: &FakeLwk) -> Result<(), Finding> {
    let mut programs = [AWAKE, "0"].map(|polls| fake.exec(&mut exec(polls)));
    let first = programs[0].as_ref();
    let first = first.map_err(|_| Finding::new("no program"))?;
    let reader = process_faults::reader(first, DEMAND.start);
    process_faults::is_asked(first)?;
    insula(&["kill", NODE])?;
    process_faults::ends_without(reader, Duration::ZERO..Duration::from_secs(15))?;
    for program in &mut programs {
        let program = program.as_mut().map_err(|_| Finding::new("no program"))?;
        let status = wait_for_end(&mut program.child)?;
        let mut error_output = String::new();
        let stderr = program
            .child
            .stderr
            .as_mut()
            .ok_or_else(|| Finding::new("no errors"))?;
        stderr.read_to_string(&mut error_output)?;
        let expected = status.code() == Some(125) && error_output.contains("node has stopped");
        Finding::unless(expected, || {
            format!("a proxy ended with {status}: {error_output}")
        })?;
    }
    try_insula(&["exec", NODE, "--", "/bin/true"])?.refused(125, &["is not running"])
}
