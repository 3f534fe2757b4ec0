//! A container that its engine has connected to a network: its node is reached at the container's address, and
//! reaches others under it.

use std::process::Command;

use serde_json::json;

use super::bundles::{NAME, configure, create, runtime};
use super::{Ended, USERS, nothing_is_left};
use crate::base::Finding;
use crate::base::support::insula_command::{assert_equal, wait_for};

/// A network namespace as engines make it: with an interface whose other end the base has.
const NAMESPACE: &str = "of-an-engine";
const PATH: &str = "/run/netns/of-an-engine";
const INTERFACE: &str = "engine";
/// The base's address, and the container's.
const BASE: &str = "10.99.0.1";
const CONTAINER: &str = "10.99.0.2";

pub(super) fn play() -> Result<(), Finding> {
    connect()?;
    let played = served();
    ip(&["netns", "delete", NAMESPACE])?;
    played
}

/// Makes the namespace, and connects it.
fn connect() -> Result<(), Finding> {
    ip(&["netns", "add", NAMESPACE])?;
    let pair = ["link", "add", INTERFACE, "type", "veth"];
    ip(&[&pair[..], &["peer", "name", "eth0", "netns", NAMESPACE]].concat())?;
    let inside = |words: &[&str]| ip(&[&["-n", NAMESPACE], words].concat());
    ip(&["address", "add", &format!("{BASE}/24"), "dev", INTERFACE])?;
    ip(&["link", "set", INTERFACE, "up"])?;
    inside(&["address", "add", &format!("{CONTAINER}/24"), "dev", "eth0"])?;
    inside(&["link", "set", "eth0", "up"])?;
    inside(&["route", "add", "default", "via", BASE])
}

fn ip(words: &[&str]) -> Result<(), Finding> {
    run("ip", words).map(drop)
}

fn run(program: &str, words: &[&str]) -> Result<String, Finding> {
    let mut command = Command::new(program);
    command.args(words);
    Ended::of(command, "")?.with_status(0)
}

fn served() -> Result<(), Finding> {
    configure(|config| {
        let server = ["busybox", "httpd", "-f", "-p", "80", "-h", "/etc"];
        config["process"]["args"] = json!(server);
        config["linux"]["namespaces"][0]["path"] = json!(PATH);
    })?;
    assert_equal("create", &create()?, &Some(0))?;
    runtime(&["start", NAME])?.with_status(0)?;
    let page = format!("http://{CONTAINER}/passwd");
    let found = wait_for("the container's page", || {
        Ok(run("busybox", &["wget", "-T", "5", "-q", "-O", "-", &page]).ok())
    })?;
    assert_equal("its page", &found.as_str(), &USERS)?;
    let ping = ["exec", NAME, "busybox", "ping", "-c", "1", "-w", "60", BASE];
    runtime(&ping)?.with_status(0)?;
    runtime(&["kill", NAME, "TERM"])?.with_status(0)?;
    wait_for("its end", || {
        let state = runtime(&["state", NAME])?.with_status(0)?;
        Ok(state.contains("\"stopped\"").then_some(()))
    })?;
    runtime(&["delete", NAME])?.with_status(0)?;
    // The namespace is as it was.
    let inside = ["netns", "exec", NAMESPACE];
    let links = run("ip", &["-n", NAMESPACE, "-o", "link"])?;
    assert_equal("its interfaces", &links.lines().count(), &2)?;
    let tables = run("ip", &[&inside[..], &["nft", "list", "tables"]].concat())?;
    assert_equal("its tables", &tables.as_str(), &"")?;
    nothing_is_left()
}
