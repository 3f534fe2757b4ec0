//! Signal calls.

pub(crate) mod action;
pub(crate) mod arguments;
pub(crate) mod frame;
pub(crate) mod mask;
pub(crate) mod send;
pub(crate) mod signalfd;
pub(crate) mod wait;
