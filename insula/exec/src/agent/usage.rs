//! What Linux nodes have used, as their agents tell.

use std::io;
use std::thread;
use std::time::Duration;

use insula_agent::Request;
use insula_agent::frame::{self, Reader};
use insula_agent::usage::Usage;
use insula_driver::Driver;
use insula_driver::name::Name;
use insula_node::stats::NodeStats;

use super::connect::to_agent_at_once;

/// Time that an agent has to answer: a node that hangs keeps nobody waiting for longer.
const TIMEOUT: Duration = Duration::from_secs(1);
/// State of a node that can be asked.
const RUNNING: &str = "running";

/// Asks all running Linux nodes at the same time, and adds what they have used. Of those without an agent, or with one
/// that is older or does not answer, nothing is known.
pub fn add_usage(driver: &Driver, nodes: &mut [NodeStats]) {
    let asked = nodes
        .iter_mut()
        .filter(|node| node.state == RUNNING && node.programs.is_none());
    thread::scope(|scope| {
        for node in asked {
            scope.spawn(|| node.usage = ask(driver, &node.name));
        }
    });
}

fn ask(driver: &Driver, name: &str) -> Option<Usage> {
    let name: Name = name.parse().ok()?;
    let stream = to_agent_at_once(driver, &name).ok()?;
    let told = || -> io::Result<Option<Result<Usage, String>>> {
        stream.set_read_timeout(Some(TIMEOUT))?;
        frame::write(&stream, &Request::Usage)?;
        Reader::new(&stream).read().map_err(io::Error::other)
    };
    told().ok()??.ok()
}
