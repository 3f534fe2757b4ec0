//! Mappings of drivers: a device's registers, and memory that it accesses.

use alloc::sync::Arc;

use crate::model::vma::{Protection, Vma, VmaFlags};
use crate::task::address_space::stop::Stop;
use crate::task::address_space::{AddressSpace, Placement};
use crate::task::shared_object::SharedObject;

impl AddressSpace {
    /// Maps memory that a device accesses, or else its registers, at a free address.
    ///
    /// # Errors
    /// As of mmap(2).
    pub fn map_for_driver(
        &mut self,
        shared: Arc<SharedObject>,
        size: u64,
        is_registers: bool,
    ) -> Result<u64, Stop> {
        let of_registers = VmaFlags::DEVICE | VmaFlags::DONT_FORK | VmaFlags::DONT_DUMP;
        let flags = match is_registers {
            true => of_registers,
            false => VmaFlags::empty(),
        };
        let access = (size, Protection::READ | Protection::WRITE);
        self.map_object_with((shared, 0), Placement::Hint(0), access, flags)
    }

    /// Whether registers of a device are mapped.
    #[must_use]
    pub fn has_registers(&self) -> bool {
        let is_device = |vma: Vma| vma.flags.contains(VmaFlags::DEVICE);
        self.vmas.all().any(is_device)
    }
}
