//! Types as values: for walking from a structure to what its members are and point to.

use super::parse::{Kind, TypeId};
use super::{Btf, Field, LookupError};

/// A type of one [`Btf`]. With another one's it has no meaning, and leads to an error or to a wrong
/// type, never to a panic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Type(TypeId);

impl Btf {
    /// The structure, union or typedef of that name.
    ///
    /// # Errors
    /// [`LookupError::NoType`].
    pub fn type_named(&self, name: &str) -> Result<Type, LookupError> {
        self.find(name).map(Type)
    }

    /// The name of a structure, union or typedef; empty if it has none.
    #[must_use]
    pub fn name_of(&self, of: Type) -> String {
        String::from_utf8_lossy(self.section.name(of.0)).into_owned()
    }

    /// Names of all structures, unions and typedefs.
    #[must_use]
    pub fn type_names(&self) -> Vec<String> {
        self.named_ids().map(|id| self.name_of(Type(id))).collect()
    }

    /// Names of the members of a structure or union, without those of anonymous ones inside it.
    #[must_use]
    pub fn member_names(&self, of: Type) -> Vec<String> {
        let id = self.strip(of.0);
        let members = id.into_iter().flat_map(|id| self.section.members(id));
        let names = members.map(|member| String::from_utf8_lossy(member.name).into_owned());
        names.filter(|name| !name.is_empty()).collect()
    }

    /// Name and offset in bytes of each member of a structure or union that is a pointer to a function,
    /// without those of other structures inside it.
    #[must_use]
    pub fn functions_of(&self, of: Type) -> Vec<(String, u64)> {
        let id = self.strip(of.0);
        let members = id.into_iter().flat_map(|id| self.section.members(id));
        let functions = members.filter(|member| {
            let target = self.target_of(Type(member.type_id));
            let target = target.and_then(|target| self.strip(target.0));
            target.is_some_and(|id| self.section.kind(id) == Kind::Function)
        });
        functions
            .map(|member| {
                let name = String::from_utf8_lossy(member.name).into_owned();
                (name, u64::from(member.bit_offset / 8))
            })
            .collect()
    }

    /// Place and type of a member of a structure or union. For `member` see
    /// [`offset_of`](Self::offset_of).
    ///
    /// # Errors
    /// [`LookupError::NoMember`].
    pub fn member_of(&self, of: Type, member: &str) -> Result<(Field, Type), LookupError> {
        let found = self.strip(of.0).and_then(|id| self.follow(id, member));
        let no_member = || LookupError::NoMember {
            structure: self.name_of(of),
            member: member.to_owned(),
        };
        found
            .map(|(field, id)| (field, Type(id)))
            .ok_or_else(no_member)
    }

    /// The size of a type in bytes; `None` for types without one, such as `void`.
    #[must_use]
    pub fn size_of_type(&self, of: Type) -> Option<u64> {
        self.size(of.0)
    }

    /// What a pointer points to; `None` if the type is no pointer.
    #[must_use]
    pub fn target_of(&self, of: Type) -> Option<Type> {
        match self.section.kind(self.strip(of.0)?) {
            Kind::Pointer { target } => Some(Type(target)),
            _ => None,
        }
    }

    /// The type of an array's elements, and their number, which is 0 for a flexible array. `None` if
    /// the type is no array.
    #[must_use]
    pub fn elements_of(&self, of: Type) -> Option<(Type, u32)> {
        match self.section.kind(self.strip(of.0)?) {
            Kind::Array { element, count } => Some((Type(element), count)),
            _ => None,
        }
    }
}
