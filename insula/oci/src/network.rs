//! The network to which an engine has connected a container.
//!
//! It is a network namespace with interfaces and addresses that are already set up. The node has its card on a
//! bridge there, as other nodes have theirs on the base; so it reaches other hosts under the container's
//! address. What comes for that address is led to the node, by a table of nftables in the namespace.

use std::net::Ipv4Addr;
use std::process::{Command, Stdio};

use insula_base::error::Error;
use insula_node::attachment::BRIDGE;

/// The table, of which a namespace can have one.
const TABLE: &str = "ip insula-oci";

/// Leads what comes for the addresses of this network namespace to a node.
///
/// # Errors
/// When another container's node has it, or nft fails.
pub(super) fn lead_to(node: Ipv4Addr) -> Result<(), Error> {
    let failed = |why: String| {
        Error::new("the container's network cannot be led to its node")
            .because(why)
            .nothing_kept()
            .hint("it takes the program `nft`, and a network that no other container has")
    };
    let mut nft = Command::new("nft");
    let nft = nft.arg(table(node)).stdin(Stdio::null());
    let ended = nft.output().map_err(|error| failed(error.to_string()))?;
    match ended.status.success() {
        true => Ok(()),
        false => Err(failed(
            String::from_utf8_lossy(&ended.stderr).trim().to_owned(),
        )),
    }
}

/// Leads it to that node no more, as far as it did: the namespace may outlive the container.
pub(super) fn leave(node: Ipv4Addr) {
    let nft = |verb: &str| {
        let mut nft = Command::new("nft");
        let nft = nft.args([verb, "table"]).args(TABLE.split(' '));
        nft.stdin(Stdio::null()).output()
    };
    let led = nft("list").is_ok_and(|listed| {
        let text = String::from_utf8_lossy(&listed.stdout).into_owned();
        text.split_whitespace().any(|word| word == node.to_string())
    });
    if led {
        // What cannot be removed goes with the namespace.
        let _ = nft("delete");
    }
}

/// What `nft` is to do. It fails if there is such a table.
fn table(node: Ipv4Addr) -> String {
    format!(
        "create table {TABLE}
         table {TABLE} {{
             chain prerouting {{
                 type nat hook prerouting priority dstnat;
                 iifname != {{ \"lo\", \"{BRIDGE}\" }} fib daddr type local dnat to {node}
             }}
         }}"
    )
}
