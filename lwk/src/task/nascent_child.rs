//! First thread of a forked child whose proxy is not ready yet.

use alloc::sync::Arc;

use insula_bare::ports::PortSet;
use insula_bare::{ExtendedState, UserContext};

use crate::model::rseq::Registration;
use crate::model::scheduling::{CoreSet, Priority};
use crate::model::signals::frame::AltStack;
use crate::model::signals::set::Set;

/// First thread of a child that has no id and slot yet.
#[derive(Debug)]
pub(super) struct NascentChild {
    pub(super) context: UserContext,
    pub(super) extended: ExtendedState,
    pub(super) blocked: Set,
    pub(super) scheduling: (Priority, CoreSet),
    pub(super) alt_stack: AltStack,
    pub(super) rseq: Option<Registration>,
    pub(super) set_child_tid: u64,
    pub(super) clear_child_tid: u64,
    pub(super) ports: Option<Arc<PortSet>>,
}
