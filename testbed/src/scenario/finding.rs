//! What a scenario finds wrong.

use std::fmt;

/// A check that failed, or an error that kept a scenario from checking. Any error
/// becomes one by `?`.
pub struct Finding(String);

impl Finding {
    /// A finding in these words.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Fails with `text()` unless `holds`.
    ///
    /// # Errors
    /// Then.
    pub fn unless(holds: bool, text: impl FnOnce() -> String) -> Result<(), Self> {
        if holds { Ok(()) } else { Err(Self(text())) }
    }

    /// Itself, with words before it that tell where it was found.
    #[must_use]
    pub fn when(self, situation: &str) -> Self {
        Self(format!("{situation}: {}", self.0))
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
