//! Channels, and memory that base and nodes share.

pub(super) mod channels;
pub(super) mod frames;
mod mapped_pages;
