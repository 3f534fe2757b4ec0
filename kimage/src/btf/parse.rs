//! The binary form of BTF: Documentation/bpf/btf.rst of the kernel, "BTF Type and String Encoding".

use super::BtfError;
use crate::bytes::{u16_at, u32_at};

const MAGIC: u16 = 0xeb9f;
const VERSION: u8 = 1;
/// Size of `struct btf_type`, which every type begins with.
const TYPE_SIZE: usize = 12;
/// Size of `struct btf_member`.
const MEMBER_SIZE: usize = 12;
/// Size of `struct btf_enum`.
const ENUMERATOR_SIZE: usize = 8;

/// Number of a type: 0 is `void`, the others count from 1 in the order of the section.
pub(super) type TypeId = u32;

/// Kind of a type, as far as offsets and sizes depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A structure or union, `size` bytes large.
    Composite {
        size: u32,
        members: u16,
        bitfields: bool,
    },
    /// An integer, enumeration or floating-point number, `size` bytes large.
    Scalar {
        size: u32,
    },
    Pointer {
        target: TypeId,
    },
    Array {
        element: TypeId,
        count: u32,
    },
    /// Another name for a type, or a type with a qualifier.
    Alias {
        target: TypeId,
        is_typedef: bool,
    },
    /// What a pointer to a function points to.
    Function,
    /// Types without a size: declarations, sections.
    Other,
}

/// A member of a structure or union.
#[derive(Debug, Clone, Copy)]
pub(super) struct Member<'a> {
    /// Empty for an anonymous structure or union.
    pub(super) name: &'a [u8],
    pub(super) type_id: TypeId,
    /// From the start of the structure.
    pub(super) bit_offset: u32,
    /// 0 if it is not a bit field.
    pub(super) bitfield_size: u32,
}

/// The types and strings of a `.BTF` section.
#[derive(Debug, Clone)]
pub(super) struct Section {
    types: Vec<u8>,
    strings: Vec<u8>,
    /// Offset of each type in `types`.
    starts: Vec<u32>,
}

impl Section {
    /// Splits a section into its types.
    pub(super) fn parse(section: &[u8]) -> Result<Self, BtfError> {
        if u16_at(section, 0) != Some(MAGIC) || section.get(2) != Some(&VERSION) {
            return Err(BtfError::Malformed("it does not start like version 1"));
        }
        let field = |offset| u32_at(section, offset).map(|value| value as usize);
        let part = |offset: usize| {
            let start = field(4)?.checked_add(field(offset)?)?;
            section.get(start..start.checked_add(field(offset + 4)?)?)
        };
        let cut_off = BtfError::Malformed("it is truncated");
        let (Some(types), Some(strings)) = (part(8), part(16)) else {
            return Err(cut_off);
        };
        let mut starts = Vec::new();
        let mut at = 0;
        while at < types.len() {
            starts.push(at as u32);
            at += type_size(types, at).ok_or(BtfError::Malformed("a type has an unknown kind"))?;
        }
        if at > types.len() {
            Err(cut_off)
        } else {
            Ok(Self {
                types: types.to_vec(),
                strings: strings.to_vec(),
                starts,
            })
        }
    }

    /// All types with their numbers.
    pub(super) fn ids(&self) -> impl Iterator<Item = TypeId> {
        1..=self.starts.len() as TypeId
    }

    /// The name of a type, empty if it has none.
    pub(super) fn name(&self, id: TypeId) -> &[u8] {
        self.start(id)
            .and_then(|start| u32_at(&self.types, start))
            .map_or(&[], |offset| self.string(offset))
    }

    /// The kind of a type.
    pub(super) fn kind(&self, id: TypeId) -> Kind {
        self.start(id)
            .and_then(|start| self.kind_at(start))
            .unwrap_or(Kind::Other)
    }

    /// The members of a structure or union; none of any other type.
    pub(super) fn members(&self, id: TypeId) -> impl Iterator<Item = Member<'_>> {
        let (count, bitfields) = match self.kind(id) {
            Kind::Composite {
                members, bitfields, ..
            } => (usize::from(members), bitfields),
            _ => (0, false),
        };
        let start = self.start(id).unwrap_or_default() + TYPE_SIZE;
        (0..count).map_while(move |index| self.member_at(start + index * MEMBER_SIZE, bitfields))
    }

    /// The names and values of a 32-bit enumeration; none of any other type.
    pub(super) fn enumerators(&self, id: TypeId) -> impl Iterator<Item = (&[u8], u32)> {
        let info = self
            .start(id)
            .and_then(|start| u32_at(&self.types, start + 4));
        let count = match info {
            Some(info) if kind_number(info) == number::ENUM => usize::from(info as u16),
            _ => 0,
        };
        let start = self.start(id).unwrap_or_default() + TYPE_SIZE;
        (0..count).map_while(move |index| {
            let at = start + index * ENUMERATOR_SIZE;
            let name = self.string(u32_at(&self.types, at)?);
            Some((name, u32_at(&self.types, at + 4)?))
        })
    }

    fn start(&self, id: TypeId) -> Option<usize> {
        let index = usize::try_from(id).ok()?.checked_sub(1)?;
        self.starts.get(index).map(|&start| start as usize)
    }

    fn string(&self, offset: u32) -> &[u8] {
        let rest = self.strings.get(offset as usize..).unwrap_or_default();
        &rest[..memchr::memchr(0, rest).unwrap_or(rest.len())]
    }

    fn kind_at(&self, start: usize) -> Option<Kind> {
        let info = u32_at(&self.types, start + 4)?;
        let size_or_type = u32_at(&self.types, start + 8)?;
        Some(match kind_number(info) {
            number::STRUCT | number::UNION => Kind::Composite {
                size: size_or_type,
                members: info as u16,
                bitfields: info >> 31 != 0,
            },
            number::INT | number::ENUM | number::FLOAT | number::ENUM64 => {
                Kind::Scalar { size: size_or_type }
            }
            number::PTR => Kind::Pointer {
                target: size_or_type,
            },
            number::ARRAY => Kind::Array {
                element: u32_at(&self.types, start + TYPE_SIZE)?,
                count: u32_at(&self.types, start + TYPE_SIZE + 8)?,
            },
            number::TYPEDEF => Kind::Alias {
                target: size_or_type,
                is_typedef: true,
            },
            number::VOLATILE | number::CONST | number::RESTRICT | number::TYPE_TAG => Kind::Alias {
                target: size_or_type,
                is_typedef: false,
            },
            number::FUNC_PROTO => Kind::Function,
            _ => Kind::Other,
        })
    }

    fn member_at(&self, at: usize, bitfields: bool) -> Option<Member<'_>> {
        let offset = u32_at(&self.types, at + 8)?;
        // With the flag set, the top byte of the offset is the size of a bit field.
        let (bit_offset, bitfield_size) = if bitfields {
            (offset & 0xff_ffff, offset >> 24)
        } else {
            (offset, 0)
        };
        Some(Member {
            name: self.string(u32_at(&self.types, at)?),
            type_id: u32_at(&self.types, at + 4)?,
            bit_offset,
            bitfield_size,
        })
    }
}

/// `BTF_KIND_*` of include/uapi/linux/btf.h.
mod number {
    pub(super) const INT: u32 = 1;
    pub(super) const PTR: u32 = 2;
    pub(super) const ARRAY: u32 = 3;
    pub(super) const STRUCT: u32 = 4;
    pub(super) const UNION: u32 = 5;
    pub(super) const ENUM: u32 = 6;
    pub(super) const FWD: u32 = 7;
    pub(super) const TYPEDEF: u32 = 8;
    pub(super) const VOLATILE: u32 = 9;
    pub(super) const CONST: u32 = 10;
    pub(super) const RESTRICT: u32 = 11;
    pub(super) const FUNC: u32 = 12;
    pub(super) const FUNC_PROTO: u32 = 13;
    pub(super) const VAR: u32 = 14;
    pub(super) const DATASEC: u32 = 15;
    pub(super) const FLOAT: u32 = 16;
    pub(super) const DECL_TAG: u32 = 17;
    pub(super) const TYPE_TAG: u32 = 18;
    pub(super) const ENUM64: u32 = 19;
}

fn kind_number(info: u32) -> u32 {
    info >> 24 & 0x1f
}

/// Size of the type at `start`, with the entries that follow its header.
fn type_size(types: &[u8], start: usize) -> Option<usize> {
    let info = u32_at(types, start + 4)?;
    let entries = (info & 0xffff) as usize;
    let more = match kind_number(info) {
        number::PTR | number::FWD | number::TYPEDEF | number::VOLATILE | number::CONST => 0,
        number::RESTRICT | number::FUNC | number::FLOAT | number::TYPE_TAG => 0,
        number::INT | number::VAR | number::DECL_TAG => 4,
        number::ARRAY => 12,
        number::ENUM | number::FUNC_PROTO => 8 * entries,
        number::STRUCT | number::UNION | number::DATASEC | number::ENUM64 => 12 * entries,
        _ => return None,
    };
    Some(TYPE_SIZE + more)
}
