//! Programs that join a container.

use std::fs;
use std::io::Write;
use std::process::Stdio;

use super::NODE;
use crate::base::Finding;
use crate::base::scenario::container::move_linux::NAME;
use crate::base::scenario::container::move_linux::failures::piped;
use crate::base::support::insula_command::{
    Answer, assert_equal, command, insula, try_insula, wait_for,
};

/// Programs are run in the container, under its kernel: with its processes, files and name, and as its users.
pub(super) fn programs_join(kernel: &str) -> Result<(), Finding> {
    let script =
        "echo $(hostname) $(cat /proc/1/comm) $(id -un) $HOME $(uname -r | cut -d. -f1-2); cat";
    let run = |user: &[&str]| {
        let words = [&["exec", "-i"][..], user, &[NAME, "sh", "-c", script]].concat();
        let mut child = piped({
            let mut command = command(&words);
            command.stdin(Stdio::piped());
            command
        })?;
        if let Some(mut input) = child.stdin.take() {
            input.write_all(b"its input\n")?;
        }
        let output = child.wait_with_output()?;
        Answer::new(&words, &output).succeeded()
    };
    for (user, name, home) in [
        (&[][..], "root", "/root"),
        (&["--user", "nobody"], "nobody", "/nonexistent"),
    ] {
        let expected = format!("{NAME} python3 {name} {home} {kernel}\nits input\n");
        assert_equal("what it prints", &run(user)?, &expected)?;
    }
    let exec = ["exec", NAME];
    try_insula(&[&exec[..], &["sh", "-c", "exit 9"]].concat())?.refused(9, &[])?;
    try_insula(&[&exec[..], &["/no/such"]].concat())?.refused(127, &["/no/such"])?;
    // On a terminal of the container's own, of the size of the command's, or the usual one.
    let size = insula(&[
        "exec",
        "-t",
        NAME,
        "sh",
        "-c",
        "test -t 0 && tty && stty size",
    ])?;
    assert_equal("its terminal", &size.as_str(), &"/dev/pts/0\r\n24 80\r\n")?;
    try_insula(&["exec", "-u", "none", NAME, "true"])?.refused(126, &["the user none"])?;
    // In its own memory.
    let (here, there) = ("/run/copied", format!("{NAME}:/tmp/copied"));
    fs::write(here, kernel)?;
    insula(&["cp", here, &there])?;
    let found = insula(&["exec", NAME, "cat", "/tmp/copied"])?;
    assert_equal("what was copied", &found.as_str(), &kernel)?;
    insula(&["cp", &format!("{NAME}:/etc/hostname"), here])?;
    assert_equal("its file", &fs::read(here)?, &fs::read("/etc/hostname")?)?;
    try_insula(&["cp", &format!("{NAME}:/no/such"), here])?.refused(1, &["/no/such"])?;
    insula(&["exec", NAME, "rm", "/tmp/copied"])?;
    Ok(fs::remove_file(here)?)
}

/// Who has joined it is not moved with it, which is told before; it ends with the command that has started it.
pub(super) fn is_not_moved() -> Result<(), Finding> {
    let mut joined = command(&["exec", NAME, "--", "sleep", "1000"])
        .stdin(Stdio::null())
        .spawn()?;
    let told = ["`sleep`, which was started in it by `insula exec`"];
    wait_for("it to be told", || {
        let answer = try_insula(&["move", "--check", NAME, NODE])?;
        Ok((answer.status == Some(1)).then_some(answer))
    })?
    .refused(1, &told)?;
    try_insula(&["move", NAME, NODE])?.refused(1, &told)?;
    joined.kill()?;
    joined.wait()?;
    wait_for("it to end", || {
        let answer = try_insula(&["move", "--check", NAME, NODE])?;
        Ok((answer.status == Some(0)).then_some(()))
    })
}
