//! Formatting for people.

mod table;

pub use table::{Align, Table};

use std::time::Duration;

/// A duration in at most two units: `3d 4h`, `5m 2s`, `1.25s`, `340us`.
#[must_use]
pub fn duration(ns: u64) -> String {
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

/// Removes the error numbers that Rust's standard library appends to system errors: the text before
/// them says the same.
#[must_use]
pub fn plain(text: &str) -> String {
    const NUMBER: &str = " (os error ";
    let mut parts = text.split(NUMBER);
    let mut whole = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once(')') {
            Some((number, rest)) if number.bytes().all(|byte| byte.is_ascii_digit()) => {
                whole.push_str(rest);
            }
            _ => {
                whole.push_str(NUMBER);
                whole.push_str(part);
            }
        }
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_numbers_are_removed() {
        let error = std::io::Error::from_raw_os_error(2);
        let text = format!("/a: {error}; /b (os error x): {error}\nhint");
        let expected =
            "/a: No such file or directory; /b (os error x): No such file or directory\nhint";
        assert_eq!(plain(&text), expected);
    }

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
