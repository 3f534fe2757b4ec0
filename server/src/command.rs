//! What the programs of servers have in common: options, and their end.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};

use crate::{Endpoint, Error, Handler};

/// Longest time without a request until it is seen that something is due, or a signal has come.
const IDLE: Duration = Duration::from_secs(1);

/// Reads a size: a number, and K, M or G.
///
/// # Errors
/// What is wrong with it.
pub fn size(text: &str) -> Result<u64, &'static str> {
    let unit = text.trim_start_matches(|digit: char| digit.is_ascii_digit());
    let shift = match unit {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => return Err("it is a number, followed by K, M or G"),
    };
    let digits = &text[..text.len() - unit.len()];
    let number: u64 = digits.parse().map_err(|_| "it is a number")?;
    number
        .checked_shl(shift)
        .filter(|bytes| bytes >> shift == number)
        .ok_or("it is too large")
}

/// Signals by which a server is asked to end.
#[derive(Clone, Debug)]
pub struct EndSignals(Arc<AtomicBool>);

impl EndSignals {
    /// Catches SIGTERM and SIGINT from now on.
    ///
    /// # Errors
    /// Those of sigaction(2).
    pub fn catch() -> io::Result<Self> {
        let has_come = Arc::new(AtomicBool::new(false));
        for signal in [SIGTERM, SIGINT] {
            signal_hook::flag::register(signal, Arc::clone(&has_come))?;
        }
        Ok(Self(has_come))
    }

    /// Whether one has come.
    #[must_use]
    pub fn have_come(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Serves until one comes. `idle` is called when no request has come for a second.
    ///
    /// # Errors
    /// [`Error`].
    pub fn serve<H: Handler>(
        &self,
        endpoint: &Endpoint,
        handler: &mut H,
        mut idle: impl FnMut(&mut H),
    ) -> Result<(), Error> {
        loop {
            match endpoint.serve(handler, Some(IDLE)) {
                _ if self.have_come() => return Ok(()),
                Error::TimedOut => idle(handler),
                Error::Interrupted => {}
                error => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn sizes_have_units() {
        assert_eq!(size("4096"), Ok(4096));
        assert_eq!(size("3K"), Ok(3 << 10));
        assert_eq!(size("2G"), Ok(2 << 30));
        for bad in [
            "",
            "M",
            "1T",
            "-1",
            "1.5M",
            "99999999999999999999",
            "18446744073709551615G",
        ] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }
}
