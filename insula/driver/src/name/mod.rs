//! Names of images and nodes.

mod missing;

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::str::FromStr;

use insula_abi as abi;
use insula_base::serde_as_text;
pub use missing::Missing;

/// Why a text is not a valid name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is not a valid name: use 1 to 63 letters, digits, '_', '.' or '-', starting with a \
     letter or digit"
)]
pub struct NameError(String);

/// A valid name: the rule of OCI and podman, `[a-zA-Z0-9][a-zA-Z0-9_.-]*`, at most 63 bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);

serde_as_text!(Name, "^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}$");

impl Name {
    /// The name as the module takes it.
    #[must_use]
    pub fn to_abi(&self) -> abi::Name {
        abi::Name::new(&self.0).unwrap_or(abi::Name::EMPTY)
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Generates a name that is not in `taken`, such as `quiet-crete`: for a node whose user gave
    /// none.
    #[must_use]
    pub fn generate(taken: &[String]) -> Self {
        let random = RandomState::new();
        let mut attempts = (0_u64..).map(|attempt| combine(random.hash_one(attempt), attempt));
        // Terminates: eventually the number in the name is larger than any in `taken`.
        let free = attempts.find(|name| !taken.contains(name));
        Self(free.unwrap_or_default())
    }
}

/// Attempts with a pair of words before a number is appended.
const BARE_ATTEMPTS: u64 = 64;

const ADJECTIVES: [&str; 24] = [
    "bold", "brave", "bright", "brisk", "calm", "clear", "cosy", "eager", "fair", "fresh",
    "gentle", "green", "happy", "keen", "kind", "lively", "merry", "mild", "proud", "quick",
    "quiet", "sunny", "warm", "wise",
];
const ISLANDS: [&str; 24] = [
    "aran", "bali", "bute", "capri", "corfu", "crete", "delos", "elba", "faro", "gozo", "hvar",
    "ibiza", "islay", "ithaca", "jura", "kos", "malta", "naxos", "oland", "paros", "rhodes",
    "samos", "skye", "texel",
];

fn combine(random: u64, attempt: u64) -> String {
    let pick = |words: &[&'static str; 24], random: u64| words[(random % 24) as usize];
    let (adjective, island) = (pick(&ADJECTIVES, random), pick(&ISLANDS, random / 24));
    match attempt.checked_sub(BARE_ATTEMPTS) {
        None => format!("{adjective}-{island}"),
        Some(number) => format!("{adjective}-{island}-{number}"),
    }
}

impl FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
        let starts_well = text
            .as_bytes()
            .first()
            .is_some_and(u8::is_ascii_alphanumeric);
        if starts_well && text.len() < abi::NAME_MAX && text.bytes().all(allowed) {
            Ok(Self(text.to_owned()))
        } else {
            Err(NameError(text.to_owned()))
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// The text of a name from the module, which allows any bytes; ours are always ASCII.
#[must_use]
pub fn text(name: &abi::Name) -> String {
    let end = name
        .name
        .iter()
        .position(|&byte| byte == 0)
        .unwrap_or(name.name.len());
    String::from_utf8_lossy(&name.name[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rule() {
        let longest = "x".repeat(63);
        for good in ["a", "web-1", "6.12", "A_b.c", &longest] {
            assert_eq!(good.parse::<Name>().unwrap().as_str(), good);
        }
        for bad in ["", "-a", ".a", "a b", "a/b", "ä", "a\n", &"x".repeat(64)] {
            assert!(bad.parse::<Name>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn generated_names_are_new_even_when_all_pairs_are_taken() {
        let pairs = ADJECTIVES
            .iter()
            .flat_map(|adjective| ISLANDS.iter().map(move |i| format!("{adjective}-{i}")));
        let taken: Vec<_> = pairs.collect();
        let name = Name::generate(&taken);
        assert!(name.as_str().parse::<Name>().is_ok());
        assert!(!taken.contains(&name.0));
        assert_eq!(Name::generate(&[]).as_str().matches('-').count(), 1);
    }

    proptest! {
        #[test]
        fn valid_names_fit_the_module(text in ".{0,80}") {
            if let Ok(name) = text.parse::<Name>() {
                prop_assert_eq!(super::text(&name.to_abi()), text);
            }
        }
    }
}
