//! What a copy has of its own: names, addresses, random numbers, and a clock that is right.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::process::Command;

use super::ORIGINAL;
use crate::base::Finding;
use crate::base::support::insula_command::{assert_equal, insula, insula_json, text, wait_for};
use crate::base::support::nodes::clock::{ALLOWED_NS, comes_within};
use crate::base::support::nodes::in_node::script;

/// What it logs when it has generated its random numbers anew for that reason only.
const RESEEDED: &str = "crng reseeded due to virtual machine fork";

/// Names, addresses, ids and random numbers all differ; clocks are right.
pub(in super::super) fn have_identities(copies: &[&str]) -> Result<(), Finding> {
    let facts = "hostname; cat /etc/machine-id; cat /proc/sys/kernel/random/uuid; \
                 cat /sys/class/net/eth0/address";
    let mut seen = BTreeSet::new();
    for name in copies {
        let (status, answer) = script(name, facts)?;
        assert_equal("status", &status, &0)?;
        let lines: Vec<_> = answer.lines().map(str::to_owned).collect();
        let [host, machine, random, card] = &lines[..] else {
            return Err(Finding::new(format!("{name} answers: {answer}")));
        };
        assert_equal("host name", &host.as_str(), name)?;
        assert_equal("length of the machine id", &machine.len(), &32)?;
        for fact in [machine, random, card] {
            Finding::unless(seen.insert(fact.clone()), || {
                format!("{name} has {fact}, as another copy does")
            })?;
        }
        comes_within(name, ALLOWED_NS)?;
        let address = text(&insula_json(&["inspect", name])?[0]["address"]);
        let answered = Command::new("busybox")
            .args(["ping", "-c", "1", "-W", "20", &address])
            .output()?;
        Finding::unless(answered.status.success(), || {
            format!("{name} does not answer at {address}: {answered:?}")
        })?;
    }
    Ok(())
}

/// Copies have addresses of the network that the original is on.
pub(super) fn are_on_its_network(copies: &[&str]) -> Result<(), Finding> {
    let network = |name| -> Result<[u8; 2], Finding> {
        let address = text(&insula_json(&["inspect", name])?[0]["address"]);
        let [first, second, ..] = address.parse::<Ipv4Addr>()?.octets();
        Ok([first, second])
    };
    let its_own = network(ORIGINAL)?;
    let mut copies = copies.iter();
    copies.try_for_each(|name| assert_equal(name, &network(name)?, &its_own))
}

/// Each kernel has noticed that it is a copy, and has not waited for the agent; the original's is none.
pub(super) fn reseed_by_themselves(copies: &[&str]) -> Result<(), Finding> {
    for name in copies {
        wait_for("a copy's kernel to reseed", || {
            let lines = insula(&["logs", name])?;
            Ok(lines.contains(RESEEDED).then_some(()))
        })?;
    }
    let lines = insula(&["logs", ORIGINAL])?;
    Finding::unless(!lines.contains(RESEEDED), || {
        format!("{ORIGINAL} takes itself for a copy")
    })
}
