//! Failures of a scenario's checks.

use std::fmt;

/// A failed check, or an error that prevented one. `?` converts any error.
pub struct Finding(String);

impl Finding {
    /// A finding with this text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Fails with `text()` unless `holds`.
    ///
    /// # Errors
    /// If it does not hold.
    pub fn unless(holds: bool, text: impl FnOnce() -> String) -> Result<(), Self> {
        if holds { Ok(()) } else { Err(Self(text())) }
    }

    /// Prefixes the situation in which it was found.
    #[must_use]
    pub fn when(self, situation: &str) -> Self {
        Self(format!("{situation}: {}", self.0))
    }

    /// Appends what may explain it.
    #[must_use]
    pub fn beside(self, facts: &[String]) -> Self {
        facts
            .iter()
            .fold(self, |Self(text), fact| Self(format!("{text}; {fact}")))
    }
}

// Not an error itself, so that this does not overlap with `From<T> for T`.
impl<E: std::error::Error> From<E> for Finding {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl fmt::Debug for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}
