//! A kernel's data types, from its own type information: BTF.
//!
//! `CONFIG_DEBUG_INFO_BTF` puts it into the section `.BTF`. The offsets of a structure's members
//! differ from version to version and from configuration to configuration; BTF has those of this
//! kernel.

mod parse;
mod types;

pub use types::Type;

use crate::elf::Vmlinux;
use crate::error::ImageError;
use crate::name_index::NameIndex;
use parse::{Kind, Section, TypeId};
use std::sync::OnceLock;
use thiserror::Error;

/// Longest chain of typedefs, qualifiers and arrays that is followed.
const CHAIN_MAX: usize = 32;

/// Why a kernel's type information cannot be read.
#[derive(Debug, Error)]
pub enum BtfError {
    /// The file is not a `vmlinux`.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// There is no section `.BTF`.
    #[error(
        "the kernel has no type information; use one built with CONFIG_DEBUG_INFO_BTF, like \
         Debian's"
    )]
    Missing,
    /// The section is inconsistent.
    #[error("the kernel's type information is damaged: {0}; copy or install the kernel again")]
    Malformed(&'static str),
}

/// Why a type or member was not found.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LookupError {
    /// No structure, union or typedef has this name.
    #[error("the kernel has no type {0}")]
    NoType(String),
    /// The type has no such member.
    #[error("the kernel's type {structure} has no member {member}")]
    NoMember {
        /// The type requested.
        structure: String,
        /// The path of the member requested.
        member: String,
    },
    /// The member is a bit field: it has no offset in bytes.
    #[error("the member {member} of the kernel's type {structure} is a bit field")]
    BitField {
        /// The type requested.
        structure: String,
        /// The path of the member requested.
        member: String,
    },
}

/// Place of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// Offset in bits from the start of the structure.
    pub bit_offset: u64,
    /// Size in bits; 0 for a flexible array.
    pub bit_size: u64,
}

/// The data types of a kernel.
#[derive(Debug, Clone)]
pub struct Btf {
    section: Section,
    /// Structures, unions, scalars and typedefs; made when the first one is looked up.
    by_name: OnceLock<NameIndex>,
}

impl Btf {
    /// Reads the type information of the ELF file `vmlinux` (see [`vmlinux`](crate::vmlinux)).
    ///
    /// # Errors
    /// [`BtfError`] when the file is not a `vmlinux`, or its type information is missing or
    /// inconsistent.
    pub fn from_vmlinux(vmlinux: &[u8]) -> Result<Self, BtfError> {
        let section = Vmlinux::parse(vmlinux)?
            .section(".BTF")
            .ok_or(BtfError::Missing)?;
        Self::parse(section)
    }

    /// Reads type information from the bytes of a `.BTF` section, such as
    /// `/sys/kernel/btf/vmlinux`.
    ///
    /// # Errors
    /// [`BtfError::Malformed`] when it is inconsistent.
    pub fn parse(section: &[u8]) -> Result<Self, BtfError> {
        Ok(Self {
            section: Section::parse(section)?,
            by_name: OnceLock::new(),
        })
    }

    /// The size in bytes of a structure, union or typedef.
    ///
    /// # Errors
    /// [`LookupError::NoType`] when the kernel does not have the type.
    pub fn size_of(&self, structure: &str) -> Result<u64, LookupError> {
        let id = self.find(structure)?;
        self.size(id)
            .ok_or_else(|| LookupError::NoType(structure.to_owned()))
    }

    /// The offset in bytes of a member of a structure, union or typedef. `member` is a path:
    /// `"list.next"`; members of anonymous structures and unions count as members of the enclosing
    /// type.
    ///
    /// # Errors
    /// [`LookupError`] when the kernel does not have it, or it is a bit field.
    pub fn offset_of(&self, structure: &str, member: &str) -> Result<u64, LookupError> {
        let field = self.field(structure, member)?;
        if field.bit_offset % 8 != 0 || field.bit_size % 8 != 0 {
            return Err(LookupError::BitField {
                structure: structure.to_owned(),
                member: member.to_owned(),
            });
        }
        Ok(field.bit_offset / 8)
    }

    /// The place of a member in bits. For `member` see [`offset_of`](Self::offset_of).
    ///
    /// # Errors
    /// [`LookupError`] when the kernel does not have it.
    pub fn field(&self, structure: &str, member: &str) -> Result<Field, LookupError> {
        let id = self.find(structure)?;
        let found = self.follow(id, member);
        found
            .map(|(field, _)| field)
            .ok_or_else(|| LookupError::NoMember {
                structure: structure.to_owned(),
                member: member.to_owned(),
            })
    }

    /// The value of a name in a 32-bit enumeration.
    ///
    /// # Errors
    /// [`LookupError`] when the kernel does not have it.
    pub fn enumerator(&self, enumeration: &str, name: &str) -> Result<u32, LookupError> {
        let named = self.named(enumeration);
        let mut values = named.flat_map(|id| self.section.enumerators(id));
        let found = values.find(|value| value.0 == name.as_bytes());
        found
            .map(|(_, value)| value)
            .ok_or_else(|| LookupError::NoMember {
                structure: enumeration.to_owned(),
                member: name.to_owned(),
            })
    }

    /// The structure or union of that name, else the typedef.
    fn find(&self, name: &str) -> Result<TypeId, LookupError> {
        let is_scalar = |id| matches!(self.section.kind(id), Kind::Scalar { .. });
        let is_composite = |id| matches!(self.section.kind(id), Kind::Composite { .. });
        let named = self.named(name).filter(|&id| !is_scalar(id));
        // Several in the section: the first.
        let found = named.min_by_key(|&id| (!is_composite(id), id));
        found.ok_or_else(|| LookupError::NoType(name.to_owned()))
    }

    /// Structures, unions, scalars and typedefs of that name.
    fn named(&self, name: &str) -> impl Iterator<Item = TypeId> {
        let name_of = |id| self.section.name(id);
        let index = || NameIndex::new(self.named_ids(), name_of);
        let all = self.by_name.get_or_init(index);
        all.find(name.as_bytes(), name_of)
    }

    /// Structures, unions, scalars and typedefs with names.
    fn named_ids(&self) -> impl Iterator<Item = TypeId> {
        let is_found_by_name = |id: &TypeId| {
            matches!(
                self.section.kind(*id),
                Kind::Composite { .. }
                    | Kind::Scalar { .. }
                    | Kind::Alias {
                        is_typedef: true,
                        ..
                    }
            )
        };
        let ids = self.section.ids().filter(is_found_by_name);
        ids.filter(|&id| !self.section.name(id).is_empty())
    }

    /// Follows a path of member names, starting at a type.
    fn follow(&self, id: TypeId, path: &str) -> Option<(Field, TypeId)> {
        let mut field = Field {
            bit_offset: 0,
            bit_size: 0,
        };
        let mut id = id;
        for name in path.split('.') {
            let (inner, type_id) = self.member(self.strip(id)?, name)?;
            field = Field {
                bit_offset: field.bit_offset + inner.bit_offset,
                bit_size: inner.bit_size,
            };
            id = type_id;
        }
        Some((field, id))
    }

    /// The member `name` of a structure, or of an anonymous one inside it, and its type.
    fn member(&self, id: TypeId, name: &str) -> Option<(Field, TypeId)> {
        // Visits each anonymous type once: hostile ones may contain each other without end.
        let mut seen = vec![id];
        let mut open = vec![(id, 0)];
        while let Some((id, base)) = open.pop() {
            for member in self.section.members(id) {
                let bit_offset = base + u64::from(member.bit_offset);
                if member.name == name.as_bytes() && !name.is_empty() {
                    let bit_size = match member.bitfield_size {
                        0 => self.size(member.type_id)?.saturating_mul(8),
                        size => u64::from(size),
                    };
                    return Some((
                        Field {
                            bit_offset,
                            bit_size,
                        },
                        member.type_id,
                    ));
                }
                let inner = if member.name.is_empty() {
                    self.strip(member.type_id)
                } else {
                    None
                };
                if let Some(inner) = inner.filter(|inner| !seen.contains(inner)) {
                    seen.push(inner);
                    open.push((inner, bit_offset));
                }
            }
        }
        None
    }

    /// The type behind typedefs and qualifiers.
    fn strip(&self, mut id: TypeId) -> Option<TypeId> {
        for _ in 0..CHAIN_MAX {
            match self.section.kind(id) {
                Kind::Alias { target, .. } => id = target,
                _ => return Some(id),
            }
        }
        None
    }

    /// The size of a type in bytes, if it has one.
    fn size(&self, mut id: TypeId) -> Option<u64> {
        let mut count = 1_u64;
        for _ in 0..CHAIN_MAX {
            let element = match self.section.kind(id) {
                Kind::Composite { size, .. } | Kind::Scalar { size } => u64::from(size),
                Kind::Pointer { .. } => size_of::<u64>() as u64,
                Kind::Array {
                    element,
                    count: elements,
                } => {
                    count = count.saturating_mul(u64::from(elements));
                    id = element;
                    continue;
                }
                Kind::Alias { target, .. } => {
                    id = target;
                    continue;
                }
                Kind::Function | Kind::Other => return None,
            };
            return Some(element.saturating_mul(count));
        }
        None
    }
}
