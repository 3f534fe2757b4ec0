//! Which endpoint a thread serves, of those that its process has.

use core::sync::atomic::{AtomicUsize, Ordering};

/// A thread that has received a request.
const HAS_RECEIVED: usize = 1;

/// The endpoint that a thread serves: from which it has received a request last; or, before it has received any, where it
/// has waited last. So a driver's thread serves its clients, not the endpoint where it waits for interrupts.
#[derive(Debug, Default)]
pub struct ServedEndpoint(AtomicUsize);

impl ServedEndpoint {
    /// Notes that it waits at an endpoint, by an even number that is that one's alone.
    pub fn wait_at(&self, endpoint: usize) {
        if self.0.load(Ordering::Relaxed) & HAS_RECEIVED == 0 {
            self.0.store(endpoint, Ordering::Relaxed);
        }
    }

    /// Notes that it has received a request from an endpoint.
    pub fn receive_from(&self, endpoint: usize) {
        self.0.store(endpoint | HAS_RECEIVED, Ordering::Relaxed);
    }

    /// Returns the endpoint; 0 for none.
    #[must_use]
    pub fn endpoint(&self) -> usize {
        self.0.load(Ordering::Relaxed) & !HAS_RECEIVED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_count_more_than_waits() {
        let served = ServedEndpoint::default();
        assert_eq!(served.endpoint(), 0);
        served.wait_at(16);
        served.wait_at(32);
        assert_eq!(served.endpoint(), 32);
        served.receive_from(16);
        served.wait_at(32);
        assert_eq!(served.endpoint(), 16);
        served.receive_from(48);
        assert_eq!(served.endpoint(), 48);
    }
}
