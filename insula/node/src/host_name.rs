//! The host name of a node's kernel.

use std::fmt;
use std::str::FromStr;

use insula_base::serde_as_text;

/// Longest one (`__NEW_UTS_LEN` of Linux).
const SIZE_MAX: usize = 64;

/// A host name: labels of letters, digits, hyphens and, as containers have them, underscores, with dots between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostName(String);

/// The text is no host name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no host name: up to {SIZE_MAX} letters, digits, hyphens and underscores, in parts with dots between them"
)]
pub struct NotAHostName;

impl HostName {
    /// Its text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for HostName {
    type Err = NotAHostName;

    fn from_str(text: &str) -> Result<Self, NotAHostName> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        let is_label = |label: &str| {
            let ends = label.starts_with('-') || label.ends_with('-');
            !label.is_empty() && !ends && label.bytes().all(is_plain)
        };
        let is_name = text.len() <= SIZE_MAX && text.split('.').all(is_label);
        is_name.then(|| Self(text.to_owned())).ok_or(NotAHostName)
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

serde_as_text!(
    HostName,
    "^[A-Za-z0-9_]([A-Za-z0-9_.-]{0,62}[A-Za-z0-9_])?$"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_names_are_labels_with_dots_between() {
        for text in [
            "web",
            "web-1.example.org",
            "adoring_lewin",
            "7",
            &"x".repeat(64),
        ] {
            assert_eq!(text.parse::<HostName>().unwrap().as_str(), text);
        }
        for text in [
            "",
            ".",
            "web.",
            "-web",
            "web-",
            "a b",
            "a=b",
            "é",
            &"x".repeat(65),
        ] {
            assert_eq!(text.parse::<HostName>(), Err(NotAHostName), "{text}");
        }
    }
}
