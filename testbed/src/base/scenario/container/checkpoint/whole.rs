//! A container with all kinds of state and live connections is written to a folder. It goes on from there
//! under another kernel, and a copy of it beside the one that goes on.

use std::net::TcpStream;

use super::super::move_linux::state::{CHECK, ECHO, NAME, PROGRAM, check, connect, echo};
use super::super::move_linux::wait_for_line;
use super::{NEW, OLD, is_nowhere, place};
use crate::base::Finding;
use crate::base::support::insula_command::{assert_equal, insula, insula_json, text, try_insula};

/// Connections that live throughout.
const CONNECTIONS: usize = 10;
/// The copy.
const COPY: &str = "copy";

/// Returns the folder of a container without connections, which has ended since.
pub(super) fn play() -> Result<String, Finding> {
    let start = ["exec", "--container", NAME, "-d", OLD, "--"];
    insula(&[&start[..], &["python3", "-c", PROGRAM]].concat())?;
    wait_for_line(NAME, "ready")?;
    let address = address(NAME)?;
    let mut checks = connect(&address, CHECK)?;
    let mut many = Vec::new();
    for _ in 0..CONNECTIONS {
        many.push(connect(&address, ECHO)?);
    }
    check(&mut checks)?;
    refusals()?;
    stops_and_goes_on(&address, &mut checks, &mut many)?;
    stays_and_is_copied(&mut checks, &mut many)?;
    drop((checks, many));
    let folder = place("alone");
    insula(&["checkpoint", NAME, "--export", &folder])?;
    is_nowhere(NEW, NAME)?;
    Ok(folder)
}

fn address(name: &str) -> Result<String, Finding> {
    Ok(text(&insula_json(&["inspect", name])?[0]["address"]))
}

fn refusals() -> Result<(), Finding> {
    let full = place(".");
    std::fs::write(place("kept"), "kept")?;
    let to_full = ["checkpoint", NAME, "--export", &full];
    try_insula(&to_full)?.refused(1, &["is not empty", "nothing was touched"])?;
    let none = ["checkpoint", "none", "--export", &place("none")];
    try_insula(&none)?.refused(1, &["no container 'none'"])?;
    let nowhere = ["checkpoint", NAME, "--export", "/no/such/folder"];
    try_insula(&nowhere)?.refused(1, &["/no/such/folder", "nothing was touched"])?;
    assert_equal(
        "a file of the folder",
        &std::fs::read_to_string(place("kept"))?,
        &"kept".to_owned(),
    )
}

/// It is removed, and goes on at another node with its name, address, log and connections.
fn stops_and_goes_on(
    address: &str,
    checks: &mut TcpStream,
    many: &mut [TcpStream],
) -> Result<(), Finding> {
    let folder = place("first");
    let told = insula(&["checkpoint", NAME, "--export", &folder])?;
    println!("{}", told.trim_end());
    is_nowhere(OLD, NAME)?;
    let restored = insula(&["restore", NEW, "--import", &folder])?;
    assert_equal("its name", &restored.trim(), &NAME)?;
    let found = &insula_json(&["inspect", NAME])?[0];
    assert_equal("its node", &text(&found["node"]), &NEW.to_owned())?;
    assert_equal("its state", &text(&found["state"]), &"running".to_owned())?;
    assert_equal("its address", &text(&found["address"]), &address.to_owned())?;
    wait_for_line(NAME, "ready")?;
    check(checks)?;
    echo(many)
}

/// It goes on where it is. A copy of it has no connection, and another address.
fn stays_and_is_copied(checks: &mut TcpStream, many: &mut [TcpStream]) -> Result<(), Finding> {
    let folder = place("second");
    insula(&["checkpoint", NAME, "-R", "-e", &folder])?;
    check(checks)?;
    echo(many)?;
    let as_it_was = ["restore", OLD, "--import", &folder];
    let named = [&as_it_was[..], &["--name", COPY]].concat();
    try_insula(&as_it_was)?.refused(1, &["'state' is that of a container"])?;
    try_insula(&named)?.refused(1, &["which is taken", "--tcp-close", "nothing was touched"])?;
    is_nowhere(OLD, COPY)?;
    insula(&[&named[..], &["--tcp-close"]].concat())?;
    let other = address(COPY)?;
    check(&mut connect(&other, CHECK)?)?;
    check(checks)?;
    echo(many)?;
    insula(&["rm", "--force", COPY]).map(drop)
}
