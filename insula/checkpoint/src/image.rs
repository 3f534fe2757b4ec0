//! Entries of an image: numbers that tell its kind, then messages, each after its length (criu.org,
//! "Images"; `criu/include/magic.h`).

use super::CheckpointError;
use super::folder::Folder;
use super::wire::{Malformed, Message};

/// Most bytes of an image that is read as a whole.
const BYTES_MAX: u64 = 256 << 20;
/// First number of all images but the inventory, since version 1.1 of the format.
const COMMON: u32 = 0x5456_4319;

/// A kind of image, by the number that it begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    number: u32,
    has_common: bool,
}

const fn kind(number: u32) -> Kind {
    Kind {
        number,
        has_common: true,
    }
}

pub(super) const INVENTORY: Kind = Kind {
    number: 0x5831_3116,
    has_common: false,
};
pub(super) const PROCESSES: Kind = kind(0x5027_3030);
pub(super) const IDS: Kind = kind(0x5443_2030);
pub(super) const CORE: Kind = kind(0x5505_3847);
pub(super) const FILES: Kind = kind(0x5630_3138);
pub(super) const PAGE_MAP: Kind = kind(0x5608_4025);

/// An image that was read.
#[derive(Debug)]
pub(super) struct Image<'a> {
    name: &'a str,
    content: Vec<u8>,
    kind: Kind,
}

impl<'a> Image<'a> {
    pub(super) fn read(
        folder: &Folder,
        name: &'a str,
        kind: Kind,
    ) -> Result<Self, CheckpointError> {
        Ok(Self {
            name,
            content: folder.read(name, BYTES_MAX)?,
            kind,
        })
    }

    /// Its messages.
    pub(super) fn messages(&self) -> Result<Vec<Message<'_>>, CheckpointError> {
        messages(&self.content, self.kind).map_err(|fault| self.damaged(fault))
    }

    /// Its only message.
    pub(super) fn message(&self) -> Result<Message<'_>, CheckpointError> {
        let mut messages = self.messages()?;
        match (messages.pop(), messages.is_empty()) {
            (Some(one), true) => Ok(one),
            _ => Err(self.damaged("it has not one message")),
        }
    }

    pub(super) fn name(&self) -> &str {
        self.name
    }

    /// The error of it, which is not as CRIU writes it.
    pub(super) fn damaged(&self, fault: impl ToString) -> CheckpointError {
        CheckpointError::Damaged {
            name: self.name.to_owned(),
            fault: fault.to_string(),
        }
    }
}

fn messages(mut bytes: &[u8], kind: Kind) -> Result<Vec<Message<'_>>, String> {
    let mut next = || -> Option<u32> {
        let (number, rest) = bytes.split_first_chunk()?;
        bytes = rest;
        Some(u32::from_le_bytes(*number))
    };
    if kind.has_common && next() != Some(COMMON) || next() != Some(kind.number) {
        return Err("it does not begin as such an image of CRIU".to_owned());
    }
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let ends = || "it ends within a message".to_owned();
        let (length, rest) = bytes.split_first_chunk().ok_or_else(ends)?;
        let length = u32::from_le_bytes(*length) as usize;
        let (message, rest) = rest.split_at_checked(length).ok_or_else(ends)?;
        bytes = rest;
        found.push(Message::parse(message).map_err(|fault: Malformed| fault.to_string())?);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn images_are_told_by_their_beginning() {
        let start = [COMMON.to_le_bytes(), PROCESSES.number.to_le_bytes()].concat();
        assert!(messages(&start, PROCESSES).unwrap().is_empty());
        assert!(messages(&start, CORE).unwrap_err().contains("begin"));
        assert!(messages(&start[..7], PROCESSES).is_err());
        let whole = [&start[..], &[2, 0, 0, 0, 8, 1]].concat();
        assert_eq!(
            messages(&whole, PROCESSES).unwrap()[0].number(1),
            Ok(Some(1))
        );
        for length in start.len() + 1..whole.len() {
            let fault = messages(&whole[..length], PROCESSES).unwrap_err();
            assert!(fault.contains("ends within"), "{fault}");
        }
        // Larger than any memory.
        let huge = [&start[..], &[0xff; 4]].concat();
        assert!(
            messages(&huge, PROCESSES)
                .unwrap_err()
                .contains("ends within")
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let start = [COMMON.to_le_bytes(), CORE.number.to_le_bytes()].concat();
            let _ = messages(&[&start[..], &bytes].concat(), CORE);
        }
    }
}
