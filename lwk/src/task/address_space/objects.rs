//! Shared-memory objects in an address space.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;

use crate::model::vma::{ObjectRef, PAGE, Protection, Vma, VmaFlags};
use crate::task::address_space::stop::Stop;
use crate::task::address_space::{AddressSpace, Placement};
use crate::task::shared_object::SharedObject;

impl AddressSpace {
    /// Maps a new shared-memory object, which children will share.
    ///
    /// # Errors
    /// As of mmap(2).
    pub fn map_shared(
        &mut self,
        placement: Placement,
        size: u64,
        protection: Protection,
    ) -> Result<u64, Stop> {
        self.map_object(SharedObject::new(), placement, (size, protection))
    }

    /// Maps an object of the kernel at a free address.
    ///
    /// # Errors
    /// As of mmap(2).
    pub fn map_kernel_object(
        &mut self,
        shared: Arc<SharedObject>,
        size: u64,
        protection: Protection,
    ) -> Result<u64, Stop> {
        self.map_object(shared, Placement::Hint(0), (size, protection))
    }

    /// Maps an object from an offset on, a multiple of the page size.
    ///
    /// # Errors
    /// As of mmap(2).
    pub(crate) fn map_object_at(
        &mut self,
        object: (Arc<SharedObject>, u64),
        placement: Placement,
        access: (u64, Protection),
    ) -> Result<u64, Stop> {
        self.map_object_with(object, placement, access, VmaFlags::empty())
    }

    fn map_object(
        &mut self,
        shared: Arc<SharedObject>,
        placement: Placement,
        access: (u64, Protection),
    ) -> Result<u64, Stop> {
        self.map_object_with((shared, 0), placement, access, VmaFlags::empty())
    }

    pub(super) fn map_object_with(
        &mut self,
        (shared, offset): (Arc<SharedObject>, u64),
        placement: Placement,
        (size, protection): (u64, Protection),
        flags: VmaFlags,
    ) -> Result<u64, Stop> {
        let start = self.map(placement, size, protection)?;
        self.vmas.insert(Vma {
            flags,
            object: Some(ObjectRef {
                number: shared.number(),
                base: start.wrapping_sub(offset),
            }),
            ..Vma::own(start, start + size, protection)
        });
        self.objects.insert(shared.number(), shared);
        Ok(start)
    }

    /// Returns the shared-memory object at an address, and the offset in it.
    #[must_use]
    pub fn object_at(&self, address: u64) -> Option<(u64, u64)> {
        let object = self.vmas.find(address)?.object?;
        Some((object.number, address.wrapping_sub(object.base)))
    }

    /// Returns the shared-memory objects of a range, in the order of their numbers.
    pub(crate) fn objects_within(&self, start: u64, end: u64) -> BTreeMap<u64, Arc<SharedObject>> {
        let objects = self.vmas.within(start, end);
        objects
            .filter_map(|vma| self.objects.get_key_value(&vma.object?.number))
            .map(|(number, object)| (*number, Arc::clone(object)))
            .collect()
    }

    /// Returns the page of shared memory at an address, by its number in the object; none if that is no address of one,
    /// or the memory is a device's or the kernel's.
    #[must_use]
    pub fn shared_page(&self, address: u64) -> Option<(Arc<SharedObject>, u64)> {
        let (number, offset) = self.object_at(address)?;
        let object = self.objects.get(&number)?;
        (object.is_of_program() && offset.is_multiple_of(PAGE))
            .then(|| (Arc::clone(object), offset / PAGE))
    }
}
