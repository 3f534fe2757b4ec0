//! Finding things of a table by their names.

use hashbrown::HashTable;
use std::hash::{BuildHasher, RandomState};

/// Numbers of things, found by their names, which are kept elsewhere.
#[derive(Debug, Clone, Default)]
pub(crate) struct NameIndex {
    numbers: HashTable<u32>,
    hasher: RandomState,
}

impl NameIndex {
    /// Index of the things of these numbers.
    pub(crate) fn new<'a>(
        numbers: impl Iterator<Item = u32>,
        name: impl Fn(u32) -> &'a [u8],
    ) -> Self {
        let hasher = RandomState::new();
        let hash = |&number: &u32| hasher.hash_one(name(number));
        let mut table = HashTable::with_capacity(numbers.size_hint().0);
        for number in numbers {
            table.insert_unique(hash(&number), number, hash);
        }
        Self {
            numbers: table,
            hasher,
        }
    }

    /// Numbers of all things of a name, in no order. `name` tells names as [`NameIndex::new`] was told.
    pub(crate) fn find<'a>(
        &self,
        wanted: &[u8],
        name: impl Fn(u32) -> &'a [u8],
    ) -> impl Iterator<Item = u32> {
        let alike = self.numbers.iter_hash(self.hasher.hash_one(wanted));
        alike.copied().filter(move |&number| name(number) == wanted)
    }
}
