//! What the server of a node's devices tells about them while the node is paused.

use std::fmt;
use std::str::FromStr;

use insula_base::storage::Identity;

/// The answer to a request to drain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// What the disks were written to, in their order, whatever is at their paths by now.
    pub files: Vec<Identity>,
    /// The used ring of each virtqueue of the other devices, whose back ends go on.
    pub used: Vec<UsedIndex>,
}

/// How many buffers of a virtqueue had been used, modulo 2^16. Those up to there are complete in the
/// node's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsedIndex {
    /// Address of the number in the node's memory (specification, 2.7.8 "The Virtqueue Used Ring").
    pub address: u64,
    /// The number.
    pub index: u16,
}

/// The answer has another form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the node's supervisor answers in another way: it is of another version")]
pub struct Malformed;

impl fmt::Display for Drained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for file in &self.files {
            writeln!(f, "{file}")?;
        }
        for UsedIndex { address, index } in &self.used {
            writeln!(f, "used:{address}:{index}")?;
        }
        Ok(())
    }
}

impl FromStr for Drained {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        let mut drained = Self::default();
        for line in text.lines() {
            match line.strip_prefix("used:") {
                Some(used) => drained.used.push(parse_used(used)?),
                None => drained.files.push(line.parse().map_err(|_| Malformed)?),
            }
        }
        Ok(drained)
    }
}

fn parse_used(text: &str) -> Result<UsedIndex, Malformed> {
    let (address, index) = text.split_once(':').ok_or(Malformed)?;
    Ok(UsedIndex {
        address: address.parse().map_err(|_| Malformed)?,
        index: index.parse().map_err(|_| Malformed)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_understood() {
        let used = |address, index| UsedIndex { address, index };
        let drained = Drained {
            files: vec![
                Identity::File(7, 3),
                Identity::Device(1),
                Identity::File(7, 2),
            ],
            used: vec![used(0x1_0000_0002, u16::MAX), used(2, 0)],
        };
        assert_eq!(drained.to_string().parse(), Ok(drained));
        assert_eq!("".parse(), Ok(Drained::default()));
        for text in ["\n", "file", "used:1", "used:1:70000", "used:-1:1"] {
            assert_eq!(text.parse::<Drained>(), Err(Malformed), "{text:?}");
        }
    }
}
