//! A container that its engine has connected to a network: its node is reached at the container's address, and
//! at published ports, and reaches others under that address.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

use serde_json::json;

use super::bundles::{NAME, configure, create, delete_ended, runtime};
use super::podman::podman;
use super::{Ended, ROOTFS, USERS, nothing_is_left};
use crate::base::Finding;
use crate::base::support::insula_command::wait_for;

/// A network namespace as engines make it: with an interface whose other end the base has.
const NAMESPACE: &str = "of-an-engine";
pub(super) const PATH: &str = "/run/netns/of-an-engine";
const INTERFACE: &str = "engine";
/// What the container runs, and its published port. The first process of a container gets no signal that it does not handle.
const SERVER: [&str; 3] = ["sh", "-c", SERVES];
const SERVES: &str =
    "trap exit TERM; busybox httpd -p 80 -h /etc; while :; do busybox sleep 0.1; done";
const PORT: u16 = 8080;
/// Whether the base forwards packets: netavark has it do so.
const FORWARD: &str = "/proc/sys/net/ipv4/ip_forward";
/// The base's address, and the container's.
const BASE: &str = "10.99.0.1";
pub(super) const CONTAINER: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 2);
/// Timeout of an attempt to connect, and of an answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Plays something with podman's network, which leaves rules behind when the last container has gone.
pub(super) fn with_podmans(play: impl FnOnce() -> Result<(), Finding>) -> Result<(), Finding> {
    let forwards = fs::read(FORWARD)?;
    let played = play();
    run("nft", &["flush", "ruleset"])?;
    fs::write(FORWARD, forwards)?;
    played
}

/// A published port of podman's.
pub(super) fn published() -> Result<(), Finding> {
    let publish = format!("{PORT}:80");
    let run = [
        "run", "-d", "--name", NAME, "-p", &publish, "--rootfs", ROOTFS,
    ];
    podman(&[&run[..], &SERVER].concat())?;
    let format = "{{.NetworkSettings.IPAddress}}";
    let address = podman(&["inspect", "--format", format, NAME])?;
    let address: Ipv4Addr = address.trim().parse()?;
    for place in [(Ipv4Addr::LOCALHOST, PORT), (address, 80)] {
        serves(place).map_err(|error| error.when(&format!("at {place:?}")))?;
    }
    podman(&["rm", "--force", "-t", "60", NAME])?;
    nothing_is_left()
}

/// A network of no engine that is known.
pub(super) fn play() -> Result<(), Finding> {
    with_namespace(|| served().and_then(|()| killed()))
}

/// Plays something while there is a namespace that an engine has connected.
pub(super) fn with_namespace(play: impl FnOnce() -> Result<(), Finding>) -> Result<(), Finding> {
    connect()?;
    let played = play();
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

pub(super) fn run(program: &str, words: &[&str]) -> Result<String, Finding> {
    let mut command = Command::new(program);
    command.args(words);
    Ended::of(command, "")?.with_status(0)
}

/// Waits until the container serves its page there.
pub(super) fn serves(place: (Ipv4Addr, u16)) -> Result<(), Finding> {
    let found = wait_for("the container's page", || Ok(page(place).ok()))?;
    Finding::unless(found.ends_with(USERS), || format!("its page: {found}"))
}

fn page(place: (Ipv4Addr, u16)) -> std::io::Result<String> {
    let address = SocketAddr::from(place);
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(b"GET /passwd HTTP/1.0\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

/// A container that is reached and reaches others.
fn served() -> Result<(), Finding> {
    start()?;
    let ping = ["exec", NAME, "busybox", "ping", "-c", "1", "-w", "60", BASE];
    runtime(&ping)?.with_status(0)?;
    ends("TERM")
}

/// One whose processes have no time to clear up: the runtime does that outside of the namespace.
fn killed() -> Result<(), Finding> {
    start()?;
    ends("KILL")
}

/// Starts the container, which then serves its page.
fn start() -> Result<(), Finding> {
    configure(|config| {
        config["process"]["args"] = json!(SERVER);
        let able = json!(["CAP_NET_BIND_SERVICE", "CAP_NET_RAW"]);
        config["process"]["capabilities"] =
            json!({"bounding": able, "effective": able, "permitted": able});
        config["linux"]["namespaces"][0]["path"] = json!(PATH);
    })?;
    create()?;
    runtime(&["start", NAME])?.with_status(0)?;
    serves((CONTAINER, 80))
}

/// Ends it by a signal; then the namespace is as it was.
fn ends(signal: &str) -> Result<(), Finding> {
    runtime(&["kill", NAME, signal])?.with_status(0)?;
    delete_ended(NAME)?;
    let inside = ["netns", "exec", NAMESPACE, "nft", "list", "tables"];
    let mut found = String::new();
    let waited = wait_for("the namespace to be as it was", || {
        let links = run("ip", &["-n", NAMESPACE, "-o", "link"])?;
        let tables = run("ip", &inside)?;
        found = format!("{links}{tables}");
        Ok((links.lines().count() == 2 && tables.is_empty()).then_some(()))
    });
    waited.map_err(|error| error.when(&found))?;
    nothing_is_left()
}
