//! Objects of a kernel: places in its memory that have a type of its own type information.
//!
//! As in drgn, one walks from object to object by the names of members, and reads a value where the
//! walk ends. What is read may have changed a moment later, and any pointer may be wrong: each step
//! can fail, and lists are followed only as far as [`LIST_MAX`].

use super::{Processor, RunningError, RunningKernel};
use crate::btf::{Field, Type};
use crate::memory::PhysicalMemory;
use std::collections::HashSet;
use std::fmt;

/// Limit on the entries of a list, above the tasks that a kernel can have (`PID_MAX_LIMIT`, 4 Mi).
pub const LIST_MAX: usize = 1 << 22;
/// Longest text that is read from an array or from where a pointer points.
const TEXT_MAX: usize = 256;

/// A place in the memory of a kernel, with a type.
pub struct Object<'k, 'a, M: ?Sized> {
    kernel: &'k RunningKernel<'a, M>,
    address: u64,
    of: Type,
    /// Bits of a bit field from `address`; whole bytes otherwise.
    bits: Option<Field>,
}

// By hand: a derive would ask the same of `M`.
impl<M: ?Sized> Clone for Object<'_, '_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M: ?Sized> Copy for Object<'_, '_, M> {}

impl<M: ?Sized> fmt::Debug for Object<'_, '_, M> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?} at {:#x}", self.of, self.address)
    }
}

impl<'a, M: PhysicalMemory + ?Sized> RunningKernel<'a, M> {
    /// The object of the type called `structure` at a virtual address.
    ///
    /// # Errors
    /// [`RunningError`] when the kernel has no such type.
    pub fn object(&self, address: u64, structure: &str) -> Result<Object<'_, 'a, M>, RunningError> {
        let of = self.btf()?.type_named(structure)?;
        Ok(Object {
            kernel: self,
            address,
            of,
            bits: None,
        })
    }

    /// The global variable `name`, whose type is called `structure`: the types of variables are not
    /// in the kernel's type information.
    ///
    /// # Errors
    /// [`RunningError`] when the kernel does not have one of both.
    pub fn global(
        &self,
        name: &'static str,
        structure: &str,
    ) -> Result<Object<'_, 'a, M>, RunningError> {
        self.object(self.symbol(name)?, structure)
    }

    /// The per-CPU variable `name` of a processor.
    ///
    /// # Errors
    /// As [`global`](Self::global).
    pub fn per_cpu(
        &self,
        processor: &Processor,
        name: &'static str,
        structure: &str,
    ) -> Result<Object<'_, 'a, M>, RunningError> {
        let offset = self.symbol(name)?;
        self.object(processor.percpu.wrapping_add(offset), structure)
    }
}

impl<'k, 'a, M: PhysicalMemory + ?Sized> Object<'k, 'a, M> {
    /// Its virtual address; of a bit field that of the structure.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The kernel that it is of.
    #[must_use]
    pub fn kernel(&self) -> &'k RunningKernel<'a, M> {
        self.kernel
    }

    /// A member: `"list.next"`. Pointers on the way are not followed; see [`target`](Self::target).
    ///
    /// # Errors
    /// [`RunningError::Type`] when there is none.
    pub fn member(&self, path: &str) -> Result<Self, RunningError> {
        let (field, of) = self.kernel.btf()?.member_of(self.of, path)?;
        let whole = field.bit_offset % 8 == 0 && field.bit_size % 8 == 0;
        Ok(match whole {
            true => self.at(self.address.wrapping_add(field.bit_offset / 8), of),
            false => Self {
                of,
                bits: Some(field),
                ..*self
            },
        })
    }

    /// The object that it points to; `None` for a null pointer.
    ///
    /// # Errors
    /// [`RunningError`] when it is no pointer, or cannot be read.
    pub fn target(&self) -> Result<Option<Self>, RunningError> {
        let target = self.kernel.btf()?.target_of(self.of);
        let target = target.ok_or(RunningError::NotOfKind("pointer"))?;
        let address = self.kernel.word(self.address)?;
        Ok((address != 0).then(|| self.at(address, target)))
    }

    /// The object that the pointer in a member points to: `member(path)`, then
    /// [`target`](Self::target).
    ///
    /// # Errors
    /// As both of these.
    pub fn follow(&self, path: &str) -> Result<Option<Self>, RunningError> {
        self.member(path)?.target()
    }

    /// An element of an array. Whether there are as many is not checked: the size of a flexible
    /// array is known to the caller only.
    ///
    /// # Errors
    /// [`RunningError`] when it is no array.
    pub fn element(&self, index: u64) -> Result<Self, RunningError> {
        let btf = self.kernel.btf()?;
        let (element, _) = btf
            .elements_of(self.of)
            .ok_or(RunningError::NotOfKind("array"))?;
        let size = btf.size_of_type(element).unwrap_or_default();
        Ok(self.at(self.address.wrapping_add(index.wrapping_mul(size)), element))
    }

    /// The number of elements of an array; 0 of a flexible one.
    ///
    /// # Errors
    /// [`RunningError`] when it is no array.
    pub fn count(&self) -> Result<u32, RunningError> {
        let elements = self.kernel.btf()?.elements_of(self.of);
        let (_, count) = elements.ok_or(RunningError::NotOfKind("array"))?;
        Ok(count)
    }

    /// The value of an integer, enumeration, pointer or bit field, or of a structure of at most 64
    /// bits: zero-extended.
    ///
    /// # Errors
    /// [`RunningError`] when it is larger, or cannot be read.
    pub fn value(&self) -> Result<u64, RunningError> {
        if let Some(field) = self.bits {
            return self.bit_field(field);
        }
        let size = self.kernel.btf()?.size_of_type(self.of).unwrap_or_default();
        let mut bytes = [0; 8];
        let part = usize::try_from(size)
            .ok()
            .and_then(|size| bytes.get_mut(..size))
            .filter(|part| !part.is_empty())
            .ok_or(RunningError::NotOfKind("number"))?;
        self.kernel.read(self.address, part)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// The value of a member.
    ///
    /// # Errors
    /// As [`member`](Self::member) and [`value`](Self::value).
    pub fn number(&self, path: &str) -> Result<u64, RunningError> {
        self.member(path)?.value()
    }

    /// The text in an array of characters, up to its first NUL, with other than printable ASCII
    /// characters replaced.
    ///
    /// # Errors
    /// [`RunningError`] when it is no array, or cannot be read.
    pub fn text(&self) -> Result<String, RunningError> {
        let elements = self.kernel.btf()?.elements_of(self.of);
        let (_, count) = elements.ok_or(RunningError::NotOfKind("array"))?;
        let mut bytes = vec![0; (count as usize).min(TEXT_MAX)];
        self.kernel.read(self.address, &mut bytes)?;
        let printable = |byte: &u8| match byte {
            b' '..=b'~' => char::from(*byte),
            _ => '?',
        };
        Ok(bytes
            .iter()
            .take_while(|byte| **byte != 0)
            .map(printable)
            .collect())
    }

    /// The structure called `structure` whose `member` this object is: `container_of()`.
    ///
    /// # Errors
    /// [`RunningError::Type`] when the kernel has no such type or member.
    pub fn container(&self, structure: &str, member: &str) -> Result<Self, RunningError> {
        let offset = self.kernel.btf()?.offset_of(structure, member)?;
        self.kernel
            .object(self.address.wrapping_sub(offset), structure)
    }

    /// The entries of the list of which this object (a `list_head`) is the head: structures called
    /// `structure`, each linked by its `member`.
    ///
    /// # Errors
    /// [`RunningError::List`] when a link is wrong; [`RunningError`] when one cannot be read.
    pub fn list(&self, structure: &str, member: &str) -> Result<Vec<Self>, RunningError> {
        let nodes = self.list_nodes()?;
        let container = |node: Self| node.container(structure, member);
        nodes.into_iter().map(container).collect()
    }

    /// The links of the list of which this object is the head, without the head.
    fn list_nodes(&self) -> Result<Vec<Self>, RunningError> {
        let btf = self.kernel.btf()?;
        let of = btf.type_named("list_head")?;
        let head = self.at(self.address, of);
        let mut seen = HashSet::new();
        let mut nodes = Vec::new();
        let mut last = head;
        while let Some(next) = last.follow("next")? {
            let previous = next.number("prev")?;
            if previous != last.address {
                return Err(ListError::Link {
                    address: last.address,
                    next: next.address,
                    previous,
                }
                .into());
            }
            if next.address == head.address {
                return Ok(nodes);
            }
            if nodes.len() >= LIST_MAX || !seen.insert(next.address) {
                return Err(ListError::Endless(head.address).into());
            }
            nodes.push(next);
            last = next;
        }
        Err(ListError::Link {
            address: last.address,
            next: 0,
            previous: 0,
        }
        .into())
    }

    /// Another object of the same kernel.
    fn at(&self, address: u64, of: Type) -> Self {
        Self {
            kernel: self.kernel,
            address,
            of,
            bits: None,
        }
    }

    /// The value of a bit field: of the aligned 64-bit words that it is in.
    fn bit_field(&self, field: Field) -> Result<u64, RunningError> {
        let start = self.address.wrapping_add(field.bit_offset / 8);
        let mut bytes = [0; 16];
        let shift = field.bit_offset % 8;
        let size = (shift + field.bit_size).div_ceil(8);
        let part = bytes
            .get_mut(..size as usize)
            .filter(|_| field.bit_size <= 64)
            .ok_or(RunningError::NotOfKind("number"))?;
        self.kernel.read(start, part)?;
        let value = u128::from_le_bytes(bytes) >> shift;
        Ok((value & ((1 << field.bit_size) - 1)) as u64)
    }
}

/// What is wrong with a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ListError {
    /// An entry and the next one do not point to each other.
    #[error(
        "the list entry at {address:#x} is followed by {next:#x}, whose predecessor is {previous:#x}"
    )]
    Link {
        /// Address of the entry.
        address: u64,
        /// Its `next`.
        next: u64,
        /// `prev` of that.
        previous: u64,
    },
    /// It does not lead back to its head.
    #[error("the list at {0:#x} does not end")]
    Endless(u64),
}
