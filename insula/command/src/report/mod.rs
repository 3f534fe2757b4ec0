//! Formatting for people.

mod table;

pub(crate) use table::{Align, Table};

use std::time::Duration;

/// A duration in at most two units: `3d 4h`, `5m 2s`, `1.25s`, `340us`.
#[must_use]
pub(crate) fn duration(ns: u64) -> String {
    let time = Duration::from_nanos(ns);
    let seconds = time.as_secs();
    match seconds {
        0 if ns < 1_000_000 => format!("{}us", ns / 1000),
        0 => format!("{}ms", time.as_millis()),
        1..60 => format!("{:.2}s", time.as_secs_f64()),
        60..3600 => format!("{}m {}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h {}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d {}h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        let seconds = |seconds: u64| duration(seconds * 1_000_000_000);
        assert_eq!(duration(340_999), "340us");
        assert_eq!(duration(12_000_000), "12ms");
        assert_eq!(duration(1_250_000_000), "1.25s");
        assert_eq!(seconds(302), "5m 2s");
        assert_eq!(seconds(7260), "2h 1m");
        assert_eq!(seconds(273_600), "3d 4h");
    }
}
