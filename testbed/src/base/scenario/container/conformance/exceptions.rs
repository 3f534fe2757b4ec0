//! Tests that runc passes and `insula-oci` cannot, with the reasons.

/// Their names and reasons.
pub(super) const EXCEPTIONS: &[(&str, &str)] = &[];
