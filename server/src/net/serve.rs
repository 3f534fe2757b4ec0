//! Serving: requests and the network card in turn.

use std::time::{Duration, Instant};

use super::network::Network;
use super::nic::Nic;
use crate::command::EndSignals;
use crate::{Endpoint, Error};

/// Time without traffic for which the card is looked at without a pause. Then it interrupts when a frame arrives; if
/// it cannot, it is looked at with pauses that grow up to the longest one, and frames wait for the end of a pause.
/// Requests end each wait.
const BUSY: Duration = Duration::from_micros(200);
const PAUSE_MIN: Duration = Duration::from_micros(50);
const PAUSE_MAX: Duration = Duration::from_millis(1);
/// How often the card's state is looked at.
const CHECK: Duration = Duration::from_secs(1);

/// Why a network is no longer served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError<E> {
    /// The kernel refuses.
    #[error("{0}")]
    Server(#[from] Error),
    /// The network card cannot be used any more.
    #[error("{0}")]
    Card(E),
}

/// When to look at the card again.
#[derive(Debug)]
struct Pauses {
    last_traffic: Instant,
    pause: Duration,
}

impl Pauses {
    fn next(&mut self, is_busy: bool) -> Duration {
        if is_busy {
            self.last_traffic = Instant::now();
        }
        self.pause = match self.last_traffic.elapsed() < BUSY {
            true => Duration::ZERO,
            false => (self.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX),
        };
        self.pause
    }
}

/// How the card's frames are found after a time without traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrivals {
    /// The card is looked at, with pauses.
    Polled,
    /// The card interrupts: its message arrives at the endpoint.
    Interrupts,
}

/// Serves a network until a signal asks for the end. `found` is called with the address each time that
/// it changes.
///
/// # Errors
/// [`ServeError`].
pub fn serve<N: Nic>(
    endpoint: &Endpoint,
    network: &mut Network<N>,
    arrivals: Arrivals,
    signals: &EndSignals,
    mut found: impl FnMut(&Network<N>),
) -> Result<(), ServeError<N::Error>> {
    let began = Instant::now();
    let mut checked = began;
    let mut address = None;
    let mut pauses = Pauses {
        last_traffic: began,
        pause: Duration::ZERO,
    };
    let rests = arrivals == Arrivals::Interrupts && network.can_interrupt();
    let mut is_busy = false;
    while !signals.have_come() {
        let now_ms = began.elapsed().as_millis() as i64;
        is_busy |= network.poll(now_ms).map_err(ServeError::Card)?;
        endpoint.announce(&network.take_announcements())?;
        if network.address() != address {
            address = network.address();
            found(network);
        }
        if checked.elapsed() > CHECK {
            network.check().map_err(ServeError::Card)?;
            checked = Instant::now();
        }
        let pause = pauses.next(is_busy);
        let is_rest = rests && !pause.is_zero();
        let pause = if is_rest { network.rest(CHECK) } else { pause };
        let served = endpoint.serve_waiting(network, pause);
        if is_rest {
            network.end_rest();
        }
        is_busy = match served {
            Ok(handled) => handled > 0,
            Err(Error::Interrupted) => false,
            Err(error) => return Err(error.into()),
        };
    }
    Ok(())
}
