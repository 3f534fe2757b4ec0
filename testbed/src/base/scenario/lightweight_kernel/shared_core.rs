//! A core that a node of the lightweight kernel shares with the base: both do their work there, and
//! what happens to one does not harm the other.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::base::support::insula_command::{
    assert_equal, command, insula, insula_json, try_insula, wait_for, with_cleanup,
};
use crate::base::support::nodes::test_node::log;
use crate::base::support::resources::{Resources, assert_unchanged};
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "shared_core",
    proves: "a lightweight kernel and the base share a core: right results, no splat, nothing left",
    // The lightweight kernel has page tables of four levels.
    machine: Shape {
        append: "no5lvl mitigations=auto",
        ..Shape::USUAL
    },
    module: Module::Loaded,
    bases: &[Flavour::V6_12],
    limit: Duration::from_secs(600),
    soak_limit: Some(Duration::from_secs(3600)),
    play,
};

const NAME: &str = "quiet";
/// The shared core.
const CORE: u32 = 2;
const CPU: &str = "2";
/// How long the base has interrupts off.
const SPIN_MS: u64 = 1000;
/// The driver that does that.
const DRIVER: &str = "/payload/insula_quiet.ko";
/// Path of the driver's parameter that has the writing core spin.
const SPIN: &str = "/sys/module/insula_quiet/parameters/spin_ms";

fn play(context: &Context) -> Result<(), Finding> {
    with_cleanup(|| {
        let before = Resources::now()?;
        is_refused()?;
        starts(&[])?;
        is_shared()?;
        both_work()?;
        base_goes_on_meanwhile()?;
        waits_for_the_base()?;
        is_restarted()?;
        insula(&["stop", "--time", "60", NAME])?;
        insula(&["rm", NAME])?;
        crashes()?;
        hangs()?;
        assert_unchanged(&before)?;
        is_started_often(context.count(5, 1000))?;
        assert_unchanged(&before)
    })
}

fn starts(more: &[&str]) -> Result<(), Finding> {
    let words = [
        "run",
        "--image",
        "lwk",
        "--share-core",
        CPU,
        "--memory",
        "64M",
        "--name",
        NAME,
    ];
    insula(&[&words, more].concat()).map(drop)
}

fn logs(what: &str) -> Result<(), Finding> {
    wait_for(&format!("the log to contain `{what}`"), || {
        Ok(log(NAME)?.contains(what).then_some(()))
    })
}

/// What cannot be is refused before anything is taken.
fn is_refused() -> Result<(), Finding> {
    let share = |core: &str, more: &[&str]| {
        let words = ["run", "--image", "lwk", "--share-core", core];
        try_insula(&[&words, more].concat())
    };
    share("0", &[])?.refused(1, &["core 0 is not available"])?;
    share(CPU, &["--isolation", "vmm"])?.refused(1, &["cannot be confined yet"])?;
    share(CPU, &["--cpus", "2"])?.refused(2, &["--cpus"])?;
    share(CPU, &["--core-share", "100"])?.refused(2, &["100"])
}

/// It stays the base's, which may not take it offline.
fn is_shared() -> Result<(), Finding> {
    logs("the core is shared with the base")?;
    let resources = Resources::now()?;
    assert_equal("owner of the core", &resources.owner(CORE), &"shared")?;
    let offline = std::fs::write(format!("/sys/devices/system/cpu/cpu{CORE}/online"), "0");
    Finding::unless(offline.is_err(), || "the core went offline".into())?;
    let again = ["run", "--image", "lwk", "--share-core", CPU];
    try_insula(&again)?.refused(1, &["belongs to a node"])?;
    let view = insula_json(&["ps", "--json"])?;
    assert_equal("state", &view[0]["state"].as_str(), &Some("running"))
}

/// Work of the base on the shared core.
fn on_the_core(line: &str) -> Result<Child, Finding> {
    let mut shell = Command::new("taskset");
    shell.args(["-c", CPU, "sh", "-c", line]);
    Ok(shell.stdout(Stdio::piped()).spawn()?)
}

fn output(of: Child) -> Result<String, Finding> {
    let output = of.wait_with_output()?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The base computes and reads its disk there, a program of the node computes, and another one makes
/// calls, by a proxy on the same core.
fn both_work() -> Result<(), Finding> {
    let count = |to: u32| format!("i=0; while [ $i -lt {to} ]; do i=$((i + 1)); done; echo $i");
    let computing = on_the_core(&count(20_000))?;
    let sum = "dd if=$(command -v insula) bs=1M count=4 iflag=direct 2>/dev/null | sha256sum";
    let expected = output(on_the_core(sum)?)?;
    let reading = on_the_core(sum)?;
    let there =
        |line: &str| on_the_core(&format!("exec insula exec {NAME} -- /bin/sh -c '{line}'"));
    let program = there(&count(50_000))?;
    let calls = "for i in 1 2 3 4 5; do cat /proc/version; done | wc -c";
    let calling = there(calls)?;
    let version = std::fs::read_to_string("/proc/version")?;
    assert_equal(
        "the program's count",
        &output(program)?.as_str(),
        &"50000\n",
    )?;
    let expected_calls = format!("{}\n", 5 * version.len());
    assert_equal("what it read", &output(calling)?, &expected_calls)?;
    assert_equal("what the base read", &output(reading)?, &expected)?;
    assert_equal("the base's count", &output(computing)?.as_str(), &"20000\n")
}

/// While a program of the node computes for long, tasks of the base on that core get their share, and
/// timers fire.
fn base_goes_on_meanwhile() -> Result<(), Finding> {
    let endless = ["exec", NAME, "--", "/bin/sh", "-c", "while :; do :; done"];
    let mut program = command(&endless).spawn()?;
    let link = format!("/proc/{}/exe", program.id());
    wait_for("the proxy to be the program's", || {
        Ok((!std::fs::read_link(&link)?.ends_with("insula")).then_some(()))
    })?;
    let done = output(on_the_core("sleep 0.2; echo done")?)?;
    assert_equal("a task of the base", &done.as_str(), &"done\n")?;
    kill(Pid::from_raw(program.id() as i32), Signal::SIGKILL)?;
    program.wait()?;
    let echo = insula(&["exec", NAME, "--", "/bin/echo", "alive"])?;
    assert_equal("a later program", &echo.as_str(), &"alive\n")
}

/// A section of the base with interrupts off delays the node: that is what `direct` promises, and no
/// more.
fn waits_for_the_base() -> Result<(), Finding> {
    let loaded = Command::new("insmod").arg(DRIVER).status()?;
    Finding::unless(loaded.success(), || format!("{DRIVER} does not load"))?;
    let mut spinning = on_the_core(&format!("echo {SPIN_MS} > {SPIN}"))?;
    let began = Instant::now();
    let echo = insula(&["exec", NAME, "--", "/bin/echo", "later"])?;
    assert_equal("a program", &echo.as_str(), &"later\n")?;
    println!(
        "a program took {} ms meanwhile",
        began.elapsed().as_millis()
    );
    Finding::unless(spinning.wait()?.success(), || "no core could spin".into())?;
    let unloaded = Command::new("rmmod").arg("insula_quiet").status()?;
    Finding::unless(unloaded.success(), || "insula_quiet.ko is in use".into())
}

fn is_restarted() -> Result<(), Finding> {
    insula(&["kill", NAME])?;
    insula(&["restart", NAME])?;
    logs("1 of 1 cores run")?;
    let echo = insula(&["exec", NAME, "--", "/bin/echo", "again"])?;
    assert_equal("a program", &echo.as_str(), &"again\n")
}

/// Its panic ends the node alone, with its reason and the last lines of its log.
fn crashes() -> Result<(), Finding> {
    starts(&["--append", "crash"])?;
    wait_for("the crash to be seen", || {
        let view = insula_json(&["ps", "--all", "--json"])?;
        let ended = view[0]["state"].as_str() == Some("stopped");
        Ok((ended && view[0]["reason"].as_str() == Some("crashed")).then_some(()))
    })?;
    logs("panic requested on the command line")?;
    insula(&["rm", NAME]).map(drop)
}

/// A kernel that never leaves the core loses it to an NMI, whether or not the command that is to kill the node gets
/// so far.
fn hangs() -> Result<(), Finding> {
    starts(&["--append", "hang"])?;
    insula(&["kill", NAME])?;
    insula(&["rm", NAME])?;
    let done = output(on_the_core("echo done")?)?;
    assert_equal("a task of the base", &done.as_str(), &"done\n")
}

fn is_started_often(count: u64) -> Result<(), Finding> {
    for _ in 0..count {
        starts(&["--core-share", "50"])?;
        let echo = insula(&["exec", NAME, "--", "/bin/echo", "often"])?;
        assert_equal("a program", &echo.as_str(), &"often\n")?;
        insula(&["kill", NAME])?;
        insula(&["rm", NAME])?;
    }
    Ok(())
}
