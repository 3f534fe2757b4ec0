//! References to pages in a node's messages.

use std::time::Duration;

use insula_abi::channel::{Pages, Right};
use insula_driver::channel::{ChannelError, End};
use insula_driver::channel::{PeerPages, PeerPagesError};
use zerocopy::IntoBytes;

use super::{echo, send_request};
use crate::base::Finding;
use crate::base::scenario::communication::mapped_pages::PAGE;
use crate::base::support::insula_command::{TIMEOUT, assert_equal};
use crate::base::support::nodes::peer_node::Peer;
use crate::node::peer::Request;

/// The node refers to pages in its messages: its own, granted ones, and others.
pub(super) fn play(peer: &Peer) -> Result<(), Finding> {
    let mut end = peer.open(7)?;
    let own = peer.node.memory()?.chunks()?;
    let first = own.first().map_or(0, |chunk| chunk.start);
    assert_reference(
        &mut end,
        first,
        Right::UNTIL_REPLY,
        Some(PeerPagesError::NotGranted(1, first)),
    )?;
    *end.peer_pages() = PeerPages::new(&own);
    assert_reference(&mut end, first, Right::MOVED, None)?;

    // A page of this process, of which no neighbouring page is granted.
    let room = vec![1_u8; 2 * PAGE];
    let address = room[room.as_ptr().align_offset(PAGE)..].as_ptr() as u64;
    let table = peer
        .node
        .create_grant_table(TIMEOUT.min(Duration::from_secs(10)))?;
    let granted = table.grant(address, PAGE as u64, false)?;
    let page = granted.first().copied().unwrap_or_default();
    assert_reference(
        &mut end,
        page,
        Right::GRANTED,
        Some(PeerPagesError::NotGranted(1, page)),
    )?;
    end.peer_pages().grant(&granted);
    assert_reference(&mut end, page, Right::GRANTED, None)?;
    assert_reference(
        &mut end,
        page,
        Right::MOVED,
        Some(PeerPagesError::NotOwned(1, page)),
    )?;
    table.revoke(address, PAGE as u64)?;
    end.peer_pages().revoke_all();
    assert_reference(
        &mut end,
        page,
        Right::GRANTED,
        Some(PeerPagesError::NotGranted(1, page)),
    )
}

/// Has the node send a reference to a page, which must be received, or refused with that error; the
/// next message is received in both cases.
fn assert_reference(
    end: &mut End,
    start: u64,
    right: Right,
    refusal: Option<PeerPagesError>,
) -> Result<(), Finding> {
    let reference = Pages {
        start,
        count: 1,
        right,
    };
    send_request(
        end,
        Request::Refer,
        &[reference.as_bytes(), b"its bytes"].concat(),
    )?;
    let mut buffer = [0; 64];
    let refused = match end.receive(&mut buffer, TIMEOUT) {
        Ok(received) => {
            assert_equal(
                "pages",
                &received.pages(&buffer).collect::<Vec<_>>(),
                &vec![reference],
            )?;
            assert_equal("bytes", &received.bytes(&buffer), &b"its bytes".as_slice())?;
            None
        }
        Err(ChannelError::PeerPages(refused)) => Some(refused),
        Err(error) => return Err(error.into()),
    };
    assert_equal("the refusal", &refused, &refusal)?;
    echo(end, b"and so on")
}
