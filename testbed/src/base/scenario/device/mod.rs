//! PCI functions that are given to nodes.

pub(super) mod devices;
pub(super) mod devices_iommu;
pub(super) mod devices_remapped;
mod refusals;
mod unplugged;
