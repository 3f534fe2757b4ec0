//! A network server without an address asks for one: the base has a server of DHCP.

use std::process::{Child, Command};

use super::{BASE, CALLS_FILE, NODE, PEER_PORT, Running, SERVER, there};
use crate::base::Finding;
use crate::base::support::insula_command::{command, insula};
use crate::base::support::spare::PAIR;

/// The only address that it hands out.
const LEASED: &str = "10.9.0.77";

/// dnsmasq, until it is dropped.
struct Dnsmasq(Child);

impl Dnsmasq {
    fn start(interface: &str) -> Result<Self, Finding> {
        let range = format!("--dhcp-range={LEASED},{LEASED},255.255.255.0,1h");
        let router = format!("--dhcp-option=option:router,{BASE}");
        let interface = format!("--interface={interface}");
        let child = Command::new("dnsmasq")
            .args(["--keep-in-foreground", "--conf-file=/dev/null", "--port=0"])
            .args([
                "--bind-interfaces",
                "--user=root",
                "--group=root",
                "--pid-file=",
            ])
            .args(["--leasefile-ro", "--dhcp-authoritative", "--no-ping"])
            .args([&interface, &range, &router])
            .spawn()?;
        Ok(Self(child))
    }
}

impl Drop for Dnsmasq {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(super) fn play(interface: &str) -> Result<(), Finding> {
    let mut dnsmasq = Dnsmasq::start(interface)?;
    let device = format!("virtio:{}", PAIR[0]);
    let words = ["servers", "start", NODE, "net", "--cpus", "0", "--"];
    insula(&[&words[..], &[SERVER, "--device", &device]].concat())?;
    // It is asked at any address that it may get: programs start before it has one.
    let peer = command(&there(&["python3", CALLS_FILE, "peer", "0.0.0.0"]));
    let peer = Running::start(peer, (LEASED, PEER_PORT));
    let ended = dnsmasq.0.try_wait()?;
    Finding::unless(ended.is_none(), || format!("dnsmasq has ended: {ended:?}"))?;
    drop(peer?);
    insula(&["servers", "stop", NODE, "net"]).map(drop)
}
