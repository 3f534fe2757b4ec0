//! What Linux's interface is made of, without side effects: VMAs, wait queues, signals, scheduling,
//! file formats. The host tests it.

pub mod cached_file;
pub(crate) mod change_lock;
pub mod core_file;
pub mod elf;
pub mod endpoint;
pub mod errno;
pub mod file_locks;
pub mod file_offset;
pub mod futex;
pub mod initial_stack;
pub mod limits;
pub mod mounts;
pub mod number;
pub mod pci;
pub mod readiness;
pub mod rseq;
pub mod running;
pub mod scheduling;
pub mod served_endpoint;
pub mod shebang;
pub mod signals;
pub mod socket_address;
pub mod thread_handle;
pub mod vma;
pub mod window_bits;
