//! Servers on a node of the lightweight kernel: programs that others ask by messages.

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
    limit: Duration::from_secs(300),
    soak_limit: Some(Duration::from_secs(1800)),
    play,
};

const NODE: &str = "quiet";
const PROBE: &str = "/payload/bin/insula-probe";
/// The server of the guide.
const NOTES: &str = "/payload/bin/notes";

fn play(context: &Context) -> Result<(), Finding> {
    with_cleanup(|| {
        let before = Resources::now()?;
        is_refused_on_linux()?;
        let words = [
            "run", "--image", "lwk", "--cpus", "3", "--memory", "128M", "--name", NODE,
        ];
        insula(&words)?;
        keeps_notes()?;
        let kills = context.count(20, 1000).to_string();
        insula(&["exec", NODE, "--", PROBE, "messages", &kills])?;
        insula(&["exec", NODE, "--", "/bin/echo", "alive"])?;
        insula(&["rm", "--force", NODE])?;
        assert_unchanged(&before)
    })
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
