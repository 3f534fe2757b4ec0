//! Events of a node's devices: reports, and the end of the node when a device is lost.

use std::sync::{Arc, Mutex, PoisonError};

use insula_abi::Reason;
use insula_driver::Node;
use nix::errno::Errno;

use super::monitor::DeviceEvents;
use super::state::Failures;

/// Handles events of a node's devices.
pub(super) struct NodeEvents<F> {
    pub(super) node: Arc<Node>,
    pub(super) report: F,
    pub(super) failures: Mutex<Failures>,
}

impl<F: Fn(&str) + Send + Sync> DeviceEvents for NodeEvents<F> {
    fn report(&self, text: &str) {
        (self.report)(text);
    }

    /// Stops the node: its requests to the device would never complete.
    fn device_lost(&self, text: &str) {
        (self.report)(text);
        match self.node.stop(Reason::DEVICE_LOST) {
            Ok(()) => {}
            // The node has ended.
            Err(error) if error.errno == Errno::EALREADY => {}
            Err(error) => (self.report)(&error.to_string()),
        }
    }

    fn set_failure(&self, device: &str, why: Option<&str>) {
        let failures = self.failures.lock();
        let mut failures = failures.unwrap_or_else(PoisonError::into_inner);
        if failures.set(device, why) {
            let text = why.map_or_else(
                || "works again".into(),
                |why| format!("does not work: {why}"),
            );
            (self.report)(&format!("{device}: {text}"));
        }
    }
}
