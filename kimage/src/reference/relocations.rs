//! The places in a kernel's image whose value depends on its address.
//!
//! The build (arch/x86/tools/relocs.c) appends them to `vmlinux` as lists of 32-bit link addresses,
//! each preceded by a zero, for the decompressor, which reads them from the end of the file
//! (`handle_relocations`, arch/x86/boot/compressed/misc.c):
//!
//! | list | value to change |
//! |---|---|
//! | last | 32 bits: add the offset |
//! | before it, up to Linux 6.14 | 32 bits: subtract it (relative references to per-CPU variables, which were linked at 0) |
//! | first | 64 bits: add it |

use super::ReferenceError;
use crate::bytes::{array_at, length, u32_at};
use crate::elf::Vmlinux;

/// Size of an entry.
const ENTRY: usize = 4;
/// Lists of a kernel up to Linux 6.14.
const LISTS_MAX: usize = 3;

/// The relocations of a kernel: link addresses, sorted.
#[derive(Debug)]
pub(super) struct Relocations {
    /// Of 32-bit values to which the offset is added.
    words: Vec<u64>,
    /// Of 32-bit values from which it is subtracted.
    inverse: Vec<u64>,
    /// Of 64-bit values to which it is added.
    long: Vec<u64>,
}

impl Relocations {
    pub(super) fn parse(file: &[u8], vmlinux: &Vmlinux<'_>) -> Result<Self, ReferenceError> {
        let start = usize::try_from(vmlinux.end()).unwrap_or(usize::MAX);
        let table = file.get(start..).unwrap_or_default();
        let mut lists = Vec::new();
        let mut end = table.len() - table.len() % ENTRY;
        while end > 0 && lists.len() < LISTS_MAX {
            let (list, before) = last_list(table, end);
            lists.push(list);
            end = before;
        }
        let mut lists = lists.into_iter();
        let (last, middle, first) = (lists.next(), lists.next(), lists.next());
        let (Some(words), Some(second)) = (last, middle) else {
            return Err(ReferenceError::Missing("relocations"));
        };
        let (inverse, long) = match first {
            Some(long) => (second, long),
            None => (Vec::new(), second),
        };
        Ok(Self {
            words,
            inverse,
            long,
        })
    }

    /// Changes `bytes`, which are linked at `start`, to what they are in a kernel with that offset.
    /// Values that are not entirely in them stay as they are.
    pub(super) fn apply(&self, start: u64, bytes: &mut [u8], offset: u64) {
        let size = length(bytes);
        for at in within(&self.words, start, size) {
            change(bytes, at, |value: u32| value.wrapping_add(offset as u32));
        }
        for at in within(&self.inverse, start, size) {
            change(bytes, at, |value: u32| value.wrapping_sub(offset as u32));
        }
        for at in within(&self.long, start, size) {
            let value = array_at(bytes, at).map(u64::from_le_bytes);
            let changed = value.map(|value| value.wrapping_add(offset).to_le_bytes());
            if let (Some(place), Some(changed)) = (bytes.get_mut(at..at + 8), changed) {
                place.copy_from_slice(&changed);
            }
        }
    }
}

/// The list that ends before byte `end` of the table, sorted, and the end of what precedes its zero.
fn last_list(table: &[u8], mut end: usize) -> (Vec<u64>, usize) {
    let mut list = Vec::new();
    while end >= ENTRY {
        end -= ENTRY;
        match u32_at(table, end) {
            Some(address) if address != 0 => list.push(sign_extended(address)),
            _ => break,
        }
    }
    list.sort_unstable();
    (list, end)
}

/// A link address from its lower half: the image is in the top 2 GiB.
fn sign_extended(low: u32) -> u64 {
    i64::from(low.cast_signed()).cast_unsigned()
}

/// Offsets from `start` of the entries of `list` that are in the `size` bytes from there.
fn within(list: &[u64], start: u64, size: u64) -> impl Iterator<Item = usize> {
    let end = start.saturating_add(size);
    let first = list.partition_point(|&address| address < start);
    let last = list.partition_point(|&address| address < end);
    list[first..last.max(first)]
        .iter()
        .map(move |address| (address - start) as usize)
}

fn change(bytes: &mut [u8], at: usize, to: impl Fn(u32) -> u32) {
    let value = u32_at(bytes, at);
    if let (Some(place), Some(value)) = (bytes.get_mut(at..at + ENTRY), value) {
        place.copy_from_slice(&to(value).to_le_bytes());
    }
}
