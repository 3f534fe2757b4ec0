//! Repairs: bytes that are written back.
//!
//! Only what is certain is repaired: code and constants, whose bytes are in the image; gates, which
//! are what they were; links that only one entry claims. A repair is made whole or not at all, and
//! only if what was found is still there: what fits an exchange of the processor at once, anything
//! else while the kernel is paused.

use insula_driver::{Mapping, OutOfRange};
use kimage::running::{RunningError, VirtualReadError};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use thiserror::Error;

use crate::target::Kernel;

/// Size of a word, in bytes.
const WORD: u64 = size_of::<u64>() as u64;
/// Size of two words, which can be exchanged at once where they are aligned to that.
const PAIR: u64 = 2 * WORD;

/// Bytes that are to be written back at one place.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Exchange {
    /// Virtual address of the first byte.
    pub address: u64,
    /// What was found, in JSON in hexadecimal.
    #[serde(with = "hexadecimal")]
    #[cfg_attr(feature = "schemars", schemars(with = "String"))]
    pub before: Vec<u8>,
    /// What must be there: as many bytes.
    #[serde(with = "hexadecimal")]
    #[cfg_attr(feature = "schemars", schemars(with = "String"))]
    pub after: Vec<u8>,
}

/// What is to be written back, all of it or nothing.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Repair {
    /// The bytes.
    pub exchanges: Vec<Exchange>,
    /// Whether the kernel may execute what is changed: then it must not run meanwhile.
    #[serde(rename = "code")]
    pub is_code: bool,
}

/// Why a repair was not made.
#[derive(Debug, Error)]
pub enum RepairError {
    /// It is not what was found any more.
    #[error("it has changed meanwhile")]
    Changed,
    /// The kernel runs.
    #[error("it can be changed only while the kernel is paused")]
    NotPaused,
    /// It cannot be read.
    #[error(transparent)]
    Unreadable(#[from] RunningError),
    /// It is not in the kernel's memory.
    #[error(transparent)]
    Outside(#[from] OutOfRange),
}

/// A word that is changed.
#[derive(Debug, Clone, Copy)]
struct Word {
    before: u64,
    after: u64,
}

/// Words by their offsets in the kernel's memory.
type Words = BTreeMap<u64, Word>;

impl Repair {
    /// The repair of bytes at one place.
    pub(crate) fn of_bytes(address: u64, before: &[u8], after: &[u8]) -> Self {
        let exchange = Exchange {
            address,
            before: before.to_vec(),
            after: after.to_vec(),
        };
        Self {
            exchanges: vec![exchange],
            is_code: false,
        }
    }

    /// The repair of pointers: of each the place, what was found there and what must be.
    pub(crate) fn of_words(words: &[(u64, u64, u64)]) -> Self {
        let exchange = |&(address, before, after): &(u64, u64, u64)| Exchange {
            address,
            before: before.to_le_bytes().to_vec(),
            after: after.to_le_bytes().to_vec(),
        };
        Self {
            exchanges: words.iter().map(exchange).collect(),
            is_code: false,
        }
    }

    /// The same of code.
    pub(crate) fn of_code(self) -> Self {
        Self {
            is_code: true,
            ..self
        }
    }

    /// What undoes it.
    #[must_use]
    pub fn inverse(&self) -> Self {
        let inverse = |one: &Exchange| Exchange {
            address: one.address,
            before: one.after.clone(),
            after: one.before.clone(),
        };
        Self {
            exchanges: self.exchanges.iter().map(inverse).collect(),
            is_code: self.is_code,
        }
    }

    /// Makes it in the memory of the kernel's node, whole or not at all.
    ///
    /// # Errors
    /// [`RepairError`] when it was not made.
    pub fn apply(
        &self,
        kernel: &Kernel<'_>,
        memory: &Mapping,
        is_paused: bool,
    ) -> Result<(), RepairError> {
        if self.is_code && !is_paused {
            return Err(RepairError::NotPaused);
        }
        let mut words = self.words(kernel, memory)?;
        words.retain(|_, word| word.before != word.after);
        if let Some((offset, before, after)) = as_pair(&words) {
            let exchanged = memory.exchange_pair(offset, before, after)?;
            return exchanged.then_some(()).ok_or(RepairError::Changed);
        }
        if words.len() > 1 && !is_paused {
            return Err(RepairError::NotPaused);
        }
        exchange_all(&words, memory)
    }

    /// The words that it changes, which must have what was found.
    fn words(&self, kernel: &Kernel<'_>, memory: &Mapping) -> Result<Words, RepairError> {
        let mut words = Words::new();
        for exchange in &self.exchanges {
            let bytes = exchange.before.iter().zip(&exchange.after);
            for (index, (before, after)) in bytes.enumerate() {
                let address = exchange.address.wrapping_add(index as u64);
                let offset = offset_of_word(kernel, memory, address)?;
                let current = memory.word(offset)?.load(Ordering::Acquire);
                let word = words.entry(offset).or_insert(Word {
                    before: current,
                    after: current,
                });
                let at = (address % WORD) as usize;
                let mut bytes = word.after.to_le_bytes();
                if bytes[at] != *before {
                    return Err(RepairError::Changed);
                }
                bytes[at] = *after;
                word.after = u64::from_le_bytes(bytes);
            }
        }
        Ok(words)
    }
}

/// Offset in the memory of the word that a byte is in.
fn offset_of_word(kernel: &Kernel<'_>, memory: &Mapping, address: u64) -> Result<u64, RepairError> {
    let word = address & !(WORD - 1);
    let table = kernel.page_table()?;
    let found = table.translate(word);
    let (physical, _) = found.ok_or(RunningError::from(VirtualReadError(word)))?;
    Ok(memory.offset_of(physical, WORD)?)
}

/// Two words that can be exchanged at once: their offset, and both their values.
fn as_pair(words: &Words) -> Option<(u64, u128, u128)> {
    let mut words = words.iter();
    let ((low_at, low), (high_at, high)) = (words.next()?, words.next()?);
    let is_pair = words.next().is_none() && low_at % PAIR == 0 && *high_at == low_at + WORD;
    let both = |low: u64, high: u64| u128::from(low) | u128::from(high) << u64::BITS;
    is_pair.then(|| {
        (
            *low_at,
            both(low.before, high.before),
            both(low.after, high.after),
        )
    })
}

/// Exchanges words one by one; if one has changed, those before it are what they were.
fn exchange_all(words: &Words, memory: &Mapping) -> Result<(), RepairError> {
    for (offset, word) in words {
        if !exchange(memory, *offset, word.before, word.after)? {
            for (offset, word) in words.range(..offset) {
                exchange(memory, *offset, word.after, word.before)?;
            }
            return Err(RepairError::Changed);
        }
    }
    Ok(())
}

/// Whether a word was what it was to be, and was exchanged.
fn exchange(memory: &Mapping, offset: u64, before: u64, after: u64) -> Result<bool, OutOfRange> {
    let word = memory.word(offset)?;
    let exchanged = word.compare_exchange(before, after, Ordering::AcqRel, Ordering::Acquire);
    Ok(exchanged.is_ok())
}

/// Bytes as text: two digits for each.
mod hexadecimal {
    use super::*;

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
        to.serialize_str(&digits.collect::<String>())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(from)?;
        let pairs = text.as_bytes().chunks(2);
        let byte = |pair: &[u8]| {
            let pair = str::from_utf8(pair).ok().filter(|pair| pair.len() == 2)?;
            u8::from_str_radix(pair, 16).ok()
        };
        let bytes = pairs.map(byte).collect::<Option<_>>();
        bytes.ok_or_else(|| D::Error::custom("not hexadecimal"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(all: &[(u64, u64, u64)]) -> Words {
        let word = |&(at, before, after): &(u64, u64, u64)| (at, Word { before, after });
        all.iter().map(word).collect()
    }

    #[test]
    fn two_words_side_by_side_are_a_pair() {
        let pair = as_pair(&words(&[(32, 1, 2), (40, 3, 4)]));
        assert_eq!(pair, Some((32, 3 << 64 | 1, 4 << 64 | 2)));
        for others in [
            &[(32, 1, 2)][..],
            &[(40, 1, 2), (48, 3, 4)],
            &[(32, 1, 2), (48, 3, 4)],
            &[(32, 1, 2), (40, 3, 4), (48, 5, 6)],
        ] {
            assert_eq!(as_pair(&words(others)), None);
        }
    }

    #[test]
    fn a_repair_survives_the_journal_and_has_an_inverse() {
        let repair = Repair::of_words(&[(16, 1, 2), (24, 3, 4)]).of_code();
        let json = serde_json::to_string(&repair).unwrap();
        assert!(
            json.contains(r#""address":16,"before":"0100000000000000""#),
            "{json}"
        );
        assert_eq!(serde_json::from_str::<Repair>(&json).unwrap(), repair);
        assert_eq!(repair.inverse().inverse(), repair);
        assert_eq!(repair.inverse().exchanges[1].after, 3_u64.to_le_bytes());
        for wrong in ["0", "xx", "0é"] {
            let json = json.replace("0100000000000000", wrong);
            assert!(serde_json::from_str::<Repair>(&json).is_err(), "{wrong}");
        }
    }
}
