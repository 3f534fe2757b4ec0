//! Calls on files below mount points: what a program asks for is asked of a file server
//! (`abi/include/insula_files.h`), by messages, without the base.
//!
//! A call comes here first if its process has a server mounted. It concerns a server if its path lies
//! below a mount point, or its descriptor is a server's file; all others go their usual way. Such a call
//! is one request, whose reply is the result. Some calls have more to do once the reply is there
//! (`ask::Then`): open(2) has the base open a placeholder for the descriptor's number.
//!
//! Not found below a mount point are relative paths from a directory of the base, and paths that lead
//! there by symbolic links of the base.

mod ask;
pub(in crate::syscall) mod content;
pub(in crate::syscall) mod descriptors;
mod directory;
mod locks;
mod map;
mod names;
mod open;
pub(crate) mod route;
pub(crate) mod routed;
mod status;
mod target;
