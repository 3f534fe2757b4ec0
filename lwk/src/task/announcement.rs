//! What servers announce to this kernel, by replies to no request.

use insula_abi::server::{MESSAGE_WORDS, announcement};

use crate::task::endpoint::Handle;
use crate::task::page_cache;
use crate::task::process::Process;
use crate::task::socket;

/// Takes over what a server announces at one of its endpoints. What it says of things that are not its own, or unknown,
/// has no effect.
pub(crate) fn take(server: &Process, endpoint: &Handle, words: [u64; MESSAGE_WORDS]) {
    match words[MESSAGE_WORDS - 1] {
        announcement::SOCKET => socket::announce(endpoint, words),
        announcement::FILE_PAGE => page_cache::share((server, endpoint), words),
        announcement::FILE_MAPPED => page_cache::map((server, endpoint), words),
        announcement::FILE_INVALID => page_cache::invalidate(endpoint, words),
        announcement::FILE_CHANGED => page_cache::set_changed(endpoint, words),
        _ => {}
    }
}

/// Ends all that was announced at an endpoint whose server has gone.
pub(crate) fn end_all(endpoint: usize) {
    socket::end_all(endpoint);
    page_cache::end_all(endpoint);
}
