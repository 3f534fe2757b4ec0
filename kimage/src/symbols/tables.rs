//! Finding the tables of kallsyms among a kernel's constants, without any symbol for them.
//!
//! scripts/kallsyms.c writes them one after the other, each aligned to `A` bytes, in one of these
//! orders:
//!
//! ```text
//! up to Linux 6.3, A = 8:    offsets  relative_base  num_syms  names  markers  [seqs_of_names]
//!                            token_table  token_index
//! since Linux 6.4, A = 8:    num_syms  names  markers  token_table  token_index
//!                            offsets  relative_base  seqs_of_names
//! since Linux 7.0, A = 4:    num_syms  names  markers  token_table  token_index
//!                            offsets  seqs_of_names
//! ```
//!
//! (`seqs_of_names`, not needed here, was added in 6.2 and backported to the stable 6.1.)
//!
//! | table | content |
//! |---|---|
//! | `num_syms` | 32 bits: number of symbols |
//! | `names` | for each symbol: size in 1 or 2 bytes (ULEB128), then so many codes |
//! | `markers` | for each 256th symbol: 32-bit offset in `names` |
//! | `token_table` | 256 NUL-terminated strings: the expansion of each code |
//! | `token_index` | for each code: 16-bit offset in `token_table` |
//! | `offsets` | for each symbol: its address in 32 bits, see [`Tables::address`] |
//! | `relative_base` | 64 bits |
//!
//! The codes of the digits expand to the digits themselves, since every kernel has them in names.
//! That run of strings is searched for; `token_index` after it confirms the match; the other tables
//! follow from there.

use crate::bytes::{u16_at, u32_at, u64_at};
use crate::elf::START_KERNEL_MAP;
use memchr::memmem;

/// Expansions of the codes `0` to `9`.
const DIGITS: &[u8] = b"0\x001\x002\x003\x004\x005\x006\x007\x008\x009\x00";
/// Number of codes.
const CODES: usize = 256;
/// Symbols from one marker to the next.
const MARKER_INTERVAL: usize = 256;
/// Alignments of every table: with `relative_base`, and without it.
const ALIGNMENTS: [usize; 2] = [8, 4];
/// Alignment of the tables if there is a `relative_base`.
const ALIGNMENT_WITH_BASE: usize = 8;
/// The largest size in two bytes of ULEB128.
const PACKED_NAME_MAX: usize = 0x3fff;
/// Largest size of the packed names from one marker to the next.
const SPAN_MAX: usize = MARKER_INTERVAL * (PACKED_NAME_MAX + 2);
/// Size of an entry of `seqs_of_names`.
const SEQ_SIZE: usize = 3;
/// Candidates that are examined closely: bounds the work on a hostile file. In real kernels the
/// first is the right one.
const CANDIDATES_MAX: usize = 8;
/// Limit on symbols: Debian's kernels have 200,000.
const SYMBOLS_MAX: usize = 1 << 22;

/// The tables, checked: `names` and `offsets` have `count` entries each.
#[derive(Debug)]
pub(super) struct Tables<'a> {
    count: usize,
    names: &'a [u8],
    tokens: Tokens<'a>,
    offsets: &'a [u8],
    origin: Origin,
}

/// Origin of the entries of `offsets`.
#[derive(Debug, Clone, Copy)]
enum Origin {
    /// `relative_base`.
    Base(u64),
    /// Relative to the byte before it, downwards; nonnegative ones are per-CPU variables
    /// (`CONFIG_KALLSYMS_ABSOLUTE_PERCPU`, up to Linux 6.14).
    BelowBase(u64),
    /// Each relative to its own address; here that of the first.
    Place(u64),
}

impl<'a> Tables<'a> {
    /// Searches for the tables in `bytes`, the content of a segment at the virtual address `start`.
    pub(super) fn find(bytes: &'a [u8], start: u64) -> Option<Self> {
        let digits = memmem::find_iter(bytes, DIGITS);
        let places = digits.flat_map(|digits| ALIGNMENTS.map(|alignment| (digits, alignment)));
        let tokens =
            places.filter_map(|(digits, alignment)| Tokens::around(bytes, digits, alignment));
        tokens
            .take(CANDIDATES_MAX)
            .find_map(|tokens| match tokens.alignment {
                ALIGNMENT_WITH_BASE => {
                    Self::old_order(bytes, &tokens).or_else(|| Self::new_order(bytes, &tokens))
                }
                _ => Self::order_without_base(bytes, start, &tokens),
            })
    }

    /// The tables, if they have the order up to Linux 6.3: addresses first.
    fn old_order(bytes: &'a [u8], tokens: &Tokens<'a>) -> Option<Self> {
        let names = Names::after_relative_base(bytes, tokens)?;
        let base = names.start.checked_sub(ALIGNMENT_WITH_BASE)?;
        let offsets = base.checked_sub(offsets_size(names.count))?;
        Self::with_base(bytes, tokens, &names, offsets)
    }

    /// The tables, if they have the order since Linux 6.4: addresses last.
    fn new_order(bytes: &'a [u8], tokens: &Tokens<'a>) -> Option<Self> {
        let names = Names::before_markers(bytes, tokens)?;
        let offsets = tokens.end.next_multiple_of(ALIGNMENT_WITH_BASE);
        Self::with_base(bytes, tokens, &names, offsets)
    }

    /// The tables, with `offsets` at `start`, followed by `relative_base`.
    fn with_base(
        bytes: &'a [u8],
        tokens: &Tokens<'a>,
        names: &Names<'a>,
        start: usize,
    ) -> Option<Self> {
        let offsets = bytes.get(start..start + 4 * names.count)?;
        let base = relative_base(bytes, start + offsets_size(names.count))?;
        let absolute_percpu =
            (0..names.count).any(|index| offset(offsets, index).is_some_and(i32::is_negative));
        let origin = if absolute_percpu {
            Origin::BelowBase(base)
        } else {
            Origin::Base(base)
        };
        Some(Self::new(tokens, names, offsets, origin))
    }

    /// The tables, if they have the order since Linux 7.0. Its `offsets` are confirmed only by
    /// ascending addresses, as in every order.
    fn order_without_base(bytes: &'a [u8], start: u64, tokens: &Tokens<'a>) -> Option<Self> {
        let names = Names::before_markers(bytes, tokens)?;
        let place = tokens.end.next_multiple_of(tokens.alignment);
        let offsets = bytes.get(place..place + 4 * names.count)?;
        let origin = Origin::Place(start.wrapping_add(place as u64));
        let tables = Self::new(tokens, &names, offsets, origin);
        let ascending = (0..tables.count).is_sorted_by_key(|index| tables.address(index));
        ascending.then_some(tables)
    }

    fn new(tokens: &Tokens<'a>, names: &Names<'a>, offsets: &'a [u8], origin: Origin) -> Self {
        Self {
            count: names.count,
            names: names.bytes,
            tokens: *tokens,
            offsets,
            origin,
        }
    }

    /// The packed name of every symbol.
    pub(super) fn packed_names(&self) -> impl Iterator<Item = &'a [u8]> {
        let mut rest = self.names;
        (0..self.count).map_while(move |_| {
            let (name, tail) = split_packed_name(rest)?;
            rest = tail;
            Some(name)
        })
    }

    /// The expansions of all codes.
    pub(super) fn tokens(&self) -> [&'a [u8]; 256] {
        std::array::from_fn(|code| self.tokens.string(code).unwrap_or_default())
    }

    /// The address of the symbol `index`: `kallsyms_sym_address` of kernel/kallsyms.c.
    pub(super) fn address(&self, index: usize) -> Option<u64> {
        let offset = offset(self.offsets, index)?;
        Some(match self.origin {
            Origin::Base(base) => base.wrapping_add(u64::from(offset.cast_unsigned())),
            Origin::BelowBase(_) if offset >= 0 => u64::from(offset.cast_unsigned()),
            Origin::BelowBase(base) => base.wrapping_sub(1).wrapping_add_signed(-i64::from(offset)),
            Origin::Place(first) => first
                .wrapping_add(4 * index as u64)
                .wrapping_add_signed(offset.into()),
        })
    }
}

/// `token_table` and `token_index`.
#[derive(Debug, Clone, Copy)]
struct Tokens<'a> {
    /// Offset of `token_table`.
    start: usize,
    /// End of `token_index`.
    end: usize,
    /// Alignment of these and all other tables.
    alignment: usize,
    table: &'a [u8],
    index: &'a [u8],
}

impl<'a> Tokens<'a> {
    /// The tables whose strings for the digits are at `digits`.
    fn around(bytes: &'a [u8], digits: usize, alignment: usize) -> Option<Self> {
        // The table's offsets have 16 bits.
        let after_digits = &bytes[digits..bytes.len().min(digits + usize::from(u16::MAX))];
        let ends = memchr::memchr_iter(0, after_digits);
        let table_end = digits + ends.take(CODES - usize::from(b'0')).last()? + 1;
        let index_start = table_end.next_multiple_of(alignment);
        let end = index_start + 2 * CODES;
        let index = bytes.get(index_start..end)?;
        let start = digits.checked_sub(usize::from(u16_at(index, 2 * usize::from(b'0'))?))?;
        let tokens = Self {
            start,
            end,
            alignment,
            table: &bytes[start..table_end],
            index,
        };
        let consistent = start.is_multiple_of(alignment) && tokens.is_consistent();
        consistent.then_some(tokens)
    }

    /// Whether each string starts where the one before it ends.
    fn is_consistent(&self) -> bool {
        let mut offset = 0;
        (0..CODES).all(|code| {
            let stored = u16_at(self.index, 2 * code).map(usize::from);
            let string = self.string(code);
            let consistent = stored == Some(offset) && string.is_some();
            offset += string.unwrap_or_default().len() + 1;
            consistent
        })
    }

    fn string(&self, code: usize) -> Option<&'a [u8]> {
        let rest = self
            .table
            .get(usize::from(u16_at(self.index, 2 * code)?)..)?;
        Some(&rest[..memchr::memchr(0, rest)?])
    }
}

/// `num_syms` and `names`, checked against `markers`.
struct Names<'a> {
    /// Offset of `num_syms`.
    start: usize,
    count: usize,
    bytes: &'a [u8],
}

impl<'a> Names<'a> {
    /// The names that belong to the tokens, in the oldest order: `num_syms` follows
    /// `relative_base`, which is unmistakable.
    fn after_relative_base(bytes: &'a [u8], tokens: &Tokens<'_>) -> Option<Self> {
        let alignment = tokens.alignment;
        let places = (alignment..tokens.start)
            .rev()
            .filter(|at| at.is_multiple_of(alignment));
        let candidates = places.filter(|&at| {
            relative_base(bytes, at - alignment).is_some()
                && count_at(bytes, at, alignment).is_some()
        });
        candidates
            .take(CANDIDATES_MAX)
            .find_map(|start| Self::at(bytes, start, tokens))
    }

    /// The names that belong to the tokens, in the newer orders: `markers`, ascending numbers
    /// starting with 0, precede the tokens.
    fn before_markers(bytes: &'a [u8], tokens: &Tokens<'_>) -> Option<Self> {
        let alignment = tokens.alignment;
        let (markers, markers_count, last) = markers_before(bytes, tokens.start, alignment)?;
        // The names after the last marker take at least 2 bytes, at most 256 times the largest
        // size.
        let highest = markers.checked_sub(last + alignment)?;
        let lowest = highest.saturating_sub(SPAN_MAX + alignment);
        let places = (lowest..=highest)
            .rev()
            .filter(|at| at.is_multiple_of(alignment));
        let candidates = places.filter(|&at| {
            count_at(bytes, at, alignment)
                .is_some_and(|count| count.div_ceil(MARKER_INTERVAL) == markers_count)
        });
        candidates
            .take(CANDIDATES_MAX)
            .find_map(|start| Self::at(bytes, start, tokens))
    }

    /// The names, if `num_syms` is at `start`, and all markers up to the tokens agree.
    fn at(bytes: &'a [u8], start: usize, tokens: &Tokens<'_>) -> Option<Self> {
        let alignment = tokens.alignment;
        let count = count_at(bytes, start, alignment)?;
        let names_start = start + alignment;
        let mut rest = bytes.get(names_start..tokens.start)?;
        let names_and_more = rest;
        let mut markers = Vec::new();
        for index in 0..count {
            if index % MARKER_INTERVAL == 0 {
                markers.push(names_and_more.len() - rest.len());
            }
            rest = split_packed_name(rest)?.1;
        }
        let size = names_and_more.len() - rest.len();
        let markers_start = (names_start + size).next_multiple_of(alignment);
        let stored = |index: usize| Some(u32_at(bytes, markers_start + 4 * index)? as usize);
        if (0..markers.len()).any(|index| stored(index) != Some(markers[index])) {
            return None;
        }
        let end = (markers_start + 4 * markers.len()).next_multiple_of(alignment);
        let end_with_seqs = (end + SEQ_SIZE * count).next_multiple_of(alignment);
        let complete = end == tokens.start || end_with_seqs == tokens.start;
        complete.then_some(Self {
            start,
            count,
            bytes: &names_and_more[..size],
        })
    }
}

/// `num_syms`, if the value at `at` is possible; padding after the 32-bit number is zero.
fn count_at(bytes: &[u8], at: usize, alignment: usize) -> Option<usize> {
    let number = if alignment > 4 {
        u64_at(bytes, at)?
    } else {
        u32_at(bytes, at)?.into()
    };
    let count = usize::try_from(number).ok()?;
    (1..=SYMBOLS_MAX).contains(&count).then_some(count)
}

/// Offset and number of the markers before `end`, and the last of them.
fn markers_before(bytes: &[u8], end: usize, alignment: usize) -> Option<(usize, usize, usize)> {
    const SIZE: usize = 4;
    let number_at = |at: usize| Some(u32_at(bytes, at)? as usize);
    let mut at = end.checked_sub(SIZE)?;
    // An odd number of markers is padded with a zero, if they are smaller than the alignment.
    if alignment > SIZE && number_at(at)? == 0 {
        at = at.checked_sub(SIZE)?;
    }
    let last_at = at;
    while number_at(at)? != 0 {
        let previous = at.checked_sub(SIZE)?;
        let span = number_at(at)?.checked_sub(number_at(previous)?)?;
        if !(2 * MARKER_INTERVAL..=SPAN_MAX).contains(&span) {
            return None;
        }
        at = previous;
    }
    Some((at, (last_at - at) / SIZE + 1, number_at(last_at)?))
}

/// Splits off a packed name.
fn split_packed_name(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&low, rest) = bytes.split_first()?;
    let (size, rest) = if low & 0x80 == 0 {
        (usize::from(low), rest)
    } else {
        let (&high, rest) = rest.split_first()?;
        (usize::from(low & 0x7f) | usize::from(high) << 7, rest)
    };
    // No symbol has an empty name, and no kernel writes three bytes of size.
    if size == 0 || size > PACKED_NAME_MAX {
        None
    } else {
        rest.split_at_checked(size)
    }
}

/// Size of `offsets` with padding, if `relative_base` follows.
fn offsets_size(count: usize) -> usize {
    (4 * count).next_multiple_of(ALIGNMENT_WITH_BASE)
}

/// `relative_base`, if the value at `offset` is possible: the start address of a kernel.
fn relative_base(bytes: &[u8], offset: usize) -> Option<u64> {
    u64_at(bytes, offset).filter(|&base| base >= START_KERNEL_MAP && base % 4096 == 0)
}

/// The entry `index` of `offsets`.
fn offset(offsets: &[u8], index: usize) -> Option<i32> {
    u32_at(offsets, 4 * index).map(u32::cast_signed)
}
