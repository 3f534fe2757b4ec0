//! Durations in rules: seconds, with a fraction if wanted.

use serde::{Deserialize, Deserializer, Serializer, de::Error};
use std::time::Duration;

/// Reads a number of seconds.
pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    let seconds = f64::deserialize(from)?;
    Duration::try_from_secs_f64(seconds).map_err(D::Error::custom)
}

/// Writes one.
pub(crate) fn serialize<S: Serializer>(duration: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(duration.as_secs_f64())
}
