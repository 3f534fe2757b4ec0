//! Test node that serves its ends of its channels.

use insula_channel::Message;
use insula_driver::channel::{End, Side};
use insula_driver::name::Name;
use insula_driver::{Driver, Node};
use nix::errno::Errno;

use crate::base::Finding;
use crate::base::support::insula_command::{TIMEOUT, assert_equal, wait_for};
use crate::node::peer::Request;

/// The node, as a peer.
pub(crate) struct Peer {
    pub(crate) node: Node,
}

impl Peer {
    /// The node of that name, whose task is `do=peer`.
    pub(crate) fn new(driver: &Driver, name: &str) -> Result<Self, Finding> {
        let node = driver.open_node(&name.parse::<Name>()?.to_abi())?;
        Ok(Self { node })
    }

    /// Opens a new session on a channel, once the node has left the last.
    pub(crate) fn open(&self, index: u32) -> Result<End, Finding> {
        let channel = wait_for("the node to leave its old session", || {
            match self.node.open_channel(index) {
                Ok(channel) => Ok(Some(channel)),
                Err(error) if error.errno == Errno::EBUSY => Ok(None),
                Err(error) => Err(error.into()),
            }
        })?;
        Ok(End::attach(channel, Side::Base)?)
    }

    /// Fails unless the node answers.
    pub(crate) fn assert_answers(&self) -> Result<(), Finding> {
        let (sent, mut buffer) = (b"still here", [0; 64]);
        let mut end = self.open(0)?;
        end.send(&Message::bytes(Request::Echo as u8, sent), TIMEOUT)?;
        let received = end.receive(&mut buffer, TIMEOUT)?;
        assert_equal(
            "the node's answer",
            &received.bytes(&buffer),
            &sent.as_slice(),
        )
    }
}
