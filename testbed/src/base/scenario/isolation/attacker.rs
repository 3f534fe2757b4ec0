//! A node whose kernel loads a driver that attacks (`insula_hostile.c`).

use crate::base::support::nodes::test_node::{TestNode, peer_image};
use crate::base::{Context, Finding};

/// Its name.
pub(super) const NAME: &str = "attacker";

/// Starts it, of that isolation, with parameters of the driver.
pub(super) fn start(
    context: &Context,
    isolation: &str,
    parameters: &str,
) -> Result<TestNode, Finding> {
    start_with(context, &["--isolation", isolation], parameters)
}

/// Starts it with other arguments of `run`.
pub(super) fn start_with(
    context: &Context,
    arguments: &[&str],
    parameters: &str,
) -> Result<TestNode, Finding> {
    let image = peer_image(context, "6.12")?;
    let size = [arguments, &["--memory", "192M", "--no-reboot"]].concat();
    let task = format!("attack attack={parameters}");
    TestNode::start(NAME, &["--image", &image], &size, &task)
}
