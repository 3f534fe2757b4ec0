//! Servers on a node of the lightweight kernel: programs that others ask by messages.

mod cached;
mod described;
mod kept;
mod mapped;
mod on_disk;
mod placed;
mod sharded;
mod spread;

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::base::support::insula_command::{
    assert_equal, command, insula, try_insula, wait_for, with_cleanup,
};
use crate::base::support::resources::{Resources, assert_unchanged};
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "servers",
    proves: "programs of a node ask others by messages: right bytes, and nothing is left when either dies",
    machine: Shape::USUAL,
    module: Module::Loaded,
    bases: &[Flavour::V6_12],
    limit: Duration::from_secs(900),
    soak_limit: Some(Duration::from_secs(1800)),
    play,
};

const NODE: &str = "quiet";
const PROBE: &str = "/payload/bin/insula-probe";
/// The server of the guide.
const NOTES: &str = "/payload/bin/notes";
const FILES: &str = "/payload/bin/insula-files";
const BLOCKS: &str = "/payload/bin/insula-blocks";
/// Where the files are: a folder of the base, and a server's on the node.
const MOUNT: &str = "/tmp/served";
const SERVED: &str = "/tmp/served=file";
/// What is played there, by name.
const SCRIPTS: &[(&str, &str)] = &[
    ("names", include_str!("servers/names.sh")),
    ("content", include_str!("servers/content.sh")),
    ("locks", include_str!("servers/locks.sh")),
    ("programs", include_str!("servers/programs.sh")),
];
/// Likewise, of files that can be mapped: not those of shards, or with blocks that are smaller than a page.
const MAPPED: (&str, &str) = ("mapped", include_str!("servers/mapped.sh"));

fn play(context: &Context) -> Result<(), Finding> {
    with_cleanup(|| {
        let before = Resources::now()?;
        is_refused_on_linux()?;
        let words = [
            "run", "--image", "lwk", "--cpus", "3", "--memory", "128M", "--name", NODE,
        ];
        insula(&words)?;
        keeps_notes()?;
        let kills = context.count(8, 1000).to_string();
        insula(&["exec", NODE, "--", PROBE, "messages", &kills])?;
        has_files()?;
        kept::play(context)?;
        placed::play()?;
        on_disk::play()?;
        cached::play(context)?;
        sharded::play(context)?;
        spread::play(context)?;
        insula(&["exec", NODE, "--", "/bin/echo", "alive"])?;
        insula(&["rm", "--force", NODE])?;
        described::play()?;
        assert_unchanged(&before)
    })
}

/// Unmodified programs have a server's files by path, as they have the base's: the same script prints the
/// same in both.
fn has_files() -> Result<(), Finding> {
    let mut server = command(&["exec", NODE, "--", FILES, "memory", "--size", "32M"])
        .stdin(Stdio::null())
        .spawn()?;
    std::fs::create_dir_all(MOUNT)?;
    for script in SCRIPTS.iter().chain([&MAPPED]) {
        prints_the_same(script)?;
    }
    is_released()?;
    server.kill()?;
    server.wait()?;
    ends()
}

/// A script prints the same in a folder of the base and in the server's files, both empty before and after.
fn prints_the_same((name, script): &(&str, &str)) -> Result<(), Finding> {
    let expected = Command::new("/bin/bash").args(["-c", script]).output()?;
    let expected = String::from_utf8_lossy(&expected.stdout).into_owned();
    Finding::unless(!expected.is_empty(), || format!("{name} printed nothing"))?;
    assert_equal(name, &insula(&there(SERVED, script))?, &expected)?;
    std::fs::remove_dir_all(MOUNT)?;
    std::fs::create_dir_all(MOUNT)?;
    insula(&there(SERVED, "rm -rf /tmp/served/*")).map(drop)
}

/// Words that run a script on the node with the server's files below [`MOUNT`].
fn there<'a>(mount: &'a str, script: &'a str) -> [&'a str; 8] {
    [
        "exec",
        "--mount",
        mount,
        NODE,
        "--",
        "/bin/bash",
        "-c",
        script,
    ]
}

/// What a program had open when it was killed, its server has no more.
fn is_released() -> Result<(), Finding> {
    let free = || insula(&there(SERVED, "stat -f -c %f /tmp/served"));
    let before = free()?;
    let script = "cd /tmp/served; exec 3>big; head -c 8M /dev/zero >&3; rm big; kill -9 $$";
    let killed = try_insula(&there(SERVED, script))?;
    assert_equal("status of a killed program", &killed.status, &None)?;
    wait_for("its blocks to be free", || {
        Ok((free()? == before).then_some(()))
    })
}

/// A server that dies under a program: its open files are gone, and the next server has others.
fn ends() -> Result<(), Finding> {
    const SCRIPT: &str = "exec 3</tmp/served/file; echo open; read -r line; cat <&3; echo $?; \
                          cat /tmp/served/file; echo $?";
    let start = || {
        let words = ["exec", NODE, "--", FILES, "memory"];
        command(&words).stdin(Stdio::null()).spawn()
    };
    let mut first = start()?;
    insula(&there(SERVED, "echo one > /tmp/served/file"))?;
    let mut program = command(&there(SERVED, SCRIPT))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let (Some(mut input), Some(output)) = (program.stdin.take(), program.stdout.take()) else {
        return Err(Finding::new("a program without pipes"));
    };
    let mut output = BufReader::new(output);
    let mut said = String::new();
    output.read_line(&mut said)?;
    first.kill()?;
    first.wait()?;
    let mut second = start()?;
    input.write_all(b"\n")?;
    output.read_to_string(&mut said)?;
    let ended = program.wait_with_output()?;
    second.kill()?;
    second.wait()?;
    assert_equal("what it said", &said.as_str(), &"open\n1\n1\n")?;
    let errors = String::from_utf8_lossy(&ended.stderr);
    let is_told = errors.contains("Stale file handle") && errors.contains("No such file");
    Finding::unless(is_told, || format!("its errors: {errors}"))
}

/// Where there are no messages the library says so.
fn is_refused_on_linux() -> Result<(), Finding> {
    let output = Command::new(NOTES).args(["get", "x"]).output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Finding::unless(said.contains("NotOnANode"), || format!("it says: {said}"))
}

fn notes<'a>(words: &[&'a str]) -> Vec<&'a str> {
    [&["exec", NODE, "--", NOTES], words].concat()
}

/// The guide's server and client, in programs of their own.
fn keeps_notes() -> Result<(), Finding> {
    let mut server = command(&notes(&["serve"])).stdin(Stdio::null()).spawn()?;
    wait_for("the server", || {
        let put = try_insula(&notes(&["put", "greeting", "hello"]))?;
        Ok(put.succeeded().is_ok().then_some(()))
    })?;
    let note = insula(&notes(&["get", "greeting"]))?;
    assert_equal("the note", &note.as_str(), &"hello\n")?;
    server.kill()?;
    server.wait()?;
    Ok(())
}
