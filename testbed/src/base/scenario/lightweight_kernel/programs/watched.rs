//! Output of `insula top` on a terminal while a program runs on the node.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use super::{NODE, on_node};
use crate::base::Finding;
use crate::base::support::insula_command::{assert_equal, try_insula, wait_for};

/// Restores the screen (xterm's private mode 1049).
const SCREEN_RESTORED: &str = "\x1b[?1049l";

/// The node and its program's calls are shown; without a terminal `top` refuses.
pub(super) fn is_watched() -> Result<(), Finding> {
    try_insula(&["top"])?.refused(1, &["terminal", "insula stats"])?;
    let words = ["/bin/busybox", "sh", "-c", "while true; do umask; done"];
    let mut program = on_node(&words).stdout(Stdio::null()).spawn()?;
    let watched = watch();
    program.kill()?;
    program.wait()?;
    watched
}

fn watch() -> Result<(), Finding> {
    // A terminal without a size of its own.
    let mut terminal = Command::new("script")
        .args([
            "-qec",
            "stty rows 40 cols 120; exec insula top",
            "/dev/null",
        ])
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let drawn = drawn(&mut terminal)?;
    let shown = wait_for("`insula top` to show the program's calls", || {
        let text = drawn();
        let all = [NODE, "running", "DELEG/S", "umask"];
        Ok(all.iter().all(|word| text.contains(word)).then_some(()))
    });
    if shown.is_err() {
        eprintln!("drawn until now: {:?}", drawn());
    }
    if let Some(mut input) = terminal.stdin.take() {
        input.write_all(b"q")?;
    }
    let status = wait_for("`insula top` to end", || Ok(terminal.try_wait()?))?;
    shown?;
    assert_equal("its status", &status.code(), &Some(0))?;
    wait_for("the screen to be as it was", || {
        Ok(drawn().contains(SCREEN_RESTORED).then_some(()))
    })
}

/// Collects the output; returns a function that gives the output so far.
fn drawn(terminal: &mut Child) -> Result<impl Fn() -> String + use<>, Finding> {
    let mut output = terminal
        .stdout
        .take()
        .ok_or_else(|| Finding::new("no output"))?;
    let drawn = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&drawn);
    thread::spawn(move || {
        let mut piece = [0; 4096];
        while let Ok(size @ 1..) = output.read(&mut piece) {
            let mut sink = sink.lock().unwrap_or_else(PoisonError::into_inner);
            sink.extend_from_slice(&piece[..size]);
        }
    });
    Ok(move || {
        let drawn = drawn.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&drawn).into_owned()
    })
}
