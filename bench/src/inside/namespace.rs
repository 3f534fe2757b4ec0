//! A network namespace at the other end of a veth pair, as a container has it.

use std::process::Command;

use testbed::base::Finding;

use super::run_lines;

/// Its address.
pub const NAMESPACE_ADDRESS: &str = "10.79.0.2";
const COMMANDS: [&str; 7] = [
    "ip netns add beside",
    "ip -n beside link set lo up",
    "ip link add veth0 type veth peer name veth1 netns beside",
    "ip address add 10.79.0.1/24 dev veth0",
    "ip link set veth0 up",
    "ip -n beside address add 10.79.0.2/24 dev veth1",
    "ip -n beside link set veth1 up",
];
/// Where it is, for nsenter(1), which leaves the other namespaces as they are.
const ENTER: &str = "--net=/run/netns/beside";

/// Makes it.
///
/// # Errors
/// When a command fails.
pub fn make_namespace() -> Result<(), Finding> {
    run_lines(&COMMANDS)
}

/// A command that runs there: its program is the first argument to be added.
#[must_use]
pub fn in_namespace() -> Command {
    let mut command = Command::new("nsenter");
    command.arg(ENTER);
    command
}
