//! Nodes: their images, start, work and end, alone, beside others and from one file.

pub(super) mod cycles;
pub(super) mod documented;
pub(super) mod endings;
pub(super) mod images;
pub(super) mod refusals;
pub(super) mod two_nodes;
pub(super) mod up_down;
pub(super) mod x2apic;
