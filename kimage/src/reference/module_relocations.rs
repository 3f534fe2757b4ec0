//! Relocation of a module's sections, as the kernel's loader does it (`__apply_relocate_add`,
//! arch/x86/kernel/module.c).

use super::ReferenceError;
use object::LittleEndian as LE;
use object::elf::{
    R_X86_64_32, R_X86_64_32S, R_X86_64_64, R_X86_64_NONE, R_X86_64_PC32, R_X86_64_PC64,
    R_X86_64_PLT32, Rela64, RelocationType,
};
use std::ops::Range;

/// A section where it was loaded.
#[derive(Debug)]
pub(super) struct Relocated {
    pub(super) bytes: Vec<u8>,
    /// Offsets of what depends on symbols whose addresses are not known.
    pub(super) unknown: Vec<Range<usize>>,
}

/// What the bytes of a section are at the address `start`. `symbols` has the address of each symbol of
/// the file.
pub(super) fn relocate(
    bytes: &[u8],
    start: u64,
    relocations: &[Rela64<LE>],
    symbols: &[Option<u64>],
) -> Result<Relocated, ReferenceError> {
    let mut relocated = Relocated {
        bytes: bytes.to_vec(),
        unknown: Vec::new(),
    };
    for one in relocations {
        let kind = one.r_type(LE, false);
        let Some((size, is_relative)) = form(kind)? else {
            continue;
        };
        let at = usize::try_from(one.r_offset.get(LE)).unwrap_or(usize::MAX);
        let end = at.saturating_add(size);
        let place = relocated.bytes.get_mut(at..end);
        let place = place.ok_or(ReferenceError::OtherFile)?;
        let symbol = symbols.get(one.r_sym(LE, false) as usize);
        let Some(symbol) = symbol.copied().flatten() else {
            relocated.unknown.push(at..end);
            continue;
        };
        let mut value = symbol.wrapping_add_signed(one.r_addend.get(LE));
        if is_relative {
            value = value.wrapping_sub(start.wrapping_add(at as u64));
        }
        place.copy_from_slice(&value.to_le_bytes()[..size]);
    }
    Ok(relocated)
}

/// Size of the value in bytes, and whether it is relative to its place; `None` if there is none.
fn form(kind: RelocationType) -> Result<Option<(usize, bool)>, ReferenceError> {
    Ok(Some(match kind {
        R_X86_64_NONE => return Ok(None),
        R_X86_64_64 => (8, false),
        R_X86_64_32 | R_X86_64_32S => (4, false),
        R_X86_64_PC32 | R_X86_64_PLT32 => (4, true),
        R_X86_64_PC64 => (8, true),
        _ => return Err(ReferenceError::Relocation(kind.0)),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::endian::{I64, U64};

    const START: u64 = 0xffff_ffff_c000_0000;

    fn relocation(at: u64, symbol: u64, kind: RelocationType, addend: i64) -> Rela64<LE> {
        Rela64 {
            r_offset: U64::new(LE, at),
            r_info: U64::new(LE, symbol << 32 | u64::from(kind.0)),
            r_addend: I64::new(LE, addend),
        }
    }

    #[test]
    fn values_are_absolute_or_relative() {
        let symbols = [Some(0), Some(START + 0x100), None];
        let relocations = [
            relocation(0, 1, R_X86_64_64, 8),
            relocation(9, 1, R_X86_64_PLT32, -4),
            relocation(13, 2, R_X86_64_32S, 0),
            relocation(17, 0, R_X86_64_NONE, 0),
        ];
        let relocated = relocate(&[0x55; 17], START, &relocations, &symbols).unwrap();
        assert_eq!(relocated.bytes[..8], (START + 0x108).to_le_bytes());
        assert_eq!(relocated.bytes[8], 0x55);
        assert_eq!(relocated.bytes[9..13], 0xf3_u32.to_le_bytes());
        assert_eq!(relocated.unknown.len(), 1);
        assert_eq!(relocated.unknown[0], 13..17);
    }

    #[test]
    fn what_is_outside_or_unknown_is_refused() {
        let outside = [relocation(14, 0, R_X86_64_PC32, 0)];
        let far = [relocation(u64::MAX, 0, R_X86_64_64, 0)];
        let kind = [relocation(0, 0, RelocationType(9), 0)];
        for wrong in [outside, far, kind] {
            assert!(relocate(&[0; 17], START, &wrong, &[Some(0)]).is_err());
        }
    }
}
