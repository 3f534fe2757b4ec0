//! A node that runs the testbed's program at its ends of its channels.

use std::time::Duration;

use insula_channel::{Message, Received};
use insula_driver::channel::{ChannelError, End, Side};
use insula_driver::{CallError, GrantTable, Node};
use testbed::base::Finding;
use testbed::host::payload::equipment::PEER_INITRD_PATH;
use testbed::node::peer::Request;

use super::{Inside, wait_until_ready};

const NODE: &str = "peer";
/// Time limit of what takes microseconds.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A channel to a node that serves requests.
pub struct Peer<'a> {
    inside: &'a Inside,
    node: Node,
    end: End,
}

impl<'a> Peer<'a> {
    /// Starts a node with a kernel of that version and that core, and opens a channel to it.
    ///
    /// # Errors
    /// When it does not start, or does not answer.
    pub fn start(inside: &'a Inside, version: &str, core: usize) -> Result<Self, Finding> {
        let kernel = inside.kernel(version)?;
        let kernel = kernel.to_string_lossy();
        let source = ["--kernel", &kernel, "--initrd", PEER_INITRD_PATH];
        let core = core.to_string();
        let size = [
            "--cpu-list",
            &core,
            "--memory",
            "256M",
            "--append",
            "do=peer",
        ];
        let start = inside.command.start(NODE, &[&source[..], &size].concat())?;
        wait_until_ready(&inside.driver, &start.name)?;
        let node = inside.driver.open_node(&start.name.to_abi())?;
        let end = End::attach(node.open_channel(0)?, Side::Base)?;
        let mut peer = Self { inside, node, end };
        peer.request(Request::Echo, &[])?;
        peer.receive(&mut [])?;
        Ok(peer)
    }

    /// Creates a grant table, to grant memory of this process to it.
    ///
    /// # Errors
    /// When the module refuses.
    pub fn grant_table(&self) -> Result<GrantTable, CallError> {
        self.node
            .create_grant_table(TIMEOUT.min(Duration::from_secs(10)))
    }

    /// Has both sides poll a ring so often before each sleep.
    ///
    /// # Errors
    /// When the channel fails.
    pub fn set_polls(&mut self, times: u32) -> Result<(), ChannelError> {
        self.end.set_polls(times);
        self.request(Request::Polls, &times.to_le_bytes())
    }

    /// Sends a request.
    ///
    /// # Errors
    /// When the channel fails.
    pub fn request(&mut self, request: Request, bytes: &[u8]) -> Result<(), ChannelError> {
        self.end
            .send(&Message::bytes(request as u8, bytes), TIMEOUT)
    }

    /// Receives a message.
    ///
    /// # Errors
    /// When the channel fails.
    pub fn receive(&mut self, buffer: &mut [u8]) -> Result<Received, ChannelError> {
        self.end.receive(buffer, TIMEOUT)
    }

    /// Removes the node.
    ///
    /// # Errors
    /// When the command fails.
    pub fn remove(self) -> Result<(), Finding> {
        self.inside.command.run(&["rm", "--force", NODE]).map(drop)
    }
}
