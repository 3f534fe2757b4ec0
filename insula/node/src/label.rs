//! Labels, by which users find their nodes.

use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

use insula_base::serde_as_text;

/// A label, as `KEY=VALUE`; without a value that is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// Its key.
    pub key: String,
    /// Its value.
    pub value: String,
}

impl FromStr for Label {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        let (key, value) = text.split_once('=').unwrap_or((text, ""));
        Ok(Self {
            key: key.to_owned(),
            value: value.to_owned(),
        })
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.key, self.value)
    }
}

serde_as_text!(Label, "^[^=]");

impl Label {
    /// Whether it is what a user asks for: a label of that key and value, or with no value of that key.
    #[must_use]
    pub fn is_asked_for(&self, asked: &str) -> bool {
        match asked.split_once('=') {
            Some((key, value)) => self.key == key && self.value == value,
            None => self.key == asked,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_found_by_its_key_or_with_its_value() {
        let [tier, bare]: [Label; 2] = ["tier=front=1", "own"].map(|text| text.parse().unwrap());
        assert_eq!((&*tier.key, &*tier.value), ("tier", "front=1"));
        assert!(tier.is_asked_for("tier") && tier.is_asked_for("tier=front=1"));
        assert!(!tier.is_asked_for("tier=") && !tier.is_asked_for("tie"));
        assert!(bare.is_asked_for("own") && bare.is_asked_for("own="));
        assert_eq!(bare.to_string().parse(), Ok(bare));
    }
}
