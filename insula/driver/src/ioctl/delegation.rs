//! Delegation: grants of memory, and mirrors of programs.

use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};

use insula_abi as abi;
use insula_abi::ioctl;
use nix::errno::Errno;

use super::{Call, CallResult, address, capacity};
use crate::CallError;

/// Creates a grant table: its descriptor and id.
pub(crate) fn node_grant_table(fd: BorrowedFd<'_>, timeout_ms: u32) -> CallResult<(OwnedFd, u32)> {
    let mut table = abi::grant::GrantTable { id: 0, timeout_ms };
    let call = Call(ioctl::NODE_GRANT_TABLE, "INSULA_NODE_GRANT_TABLE");
    // SAFETY: `GrantTable` is this request's structure and holds no address.
    let fd = unsafe { call.descriptor(fd, &mut table) }?;
    Ok((fd, table.id))
}

pub(crate) fn grant_add(
    fd: BorrowedFd<'_>,
    address: u64,
    size: u64,
    flags: u32,
) -> CallResult<Vec<u64>> {
    const PAGE: u64 = 4096;
    let call = Call(ioctl::GRANT_ADD, "INSULA_GRANT_ADD");
    let count = usize::try_from(size / PAGE).unwrap_or(usize::MAX);
    let mut pages = Vec::new();
    // Fails for impossible sizes only.
    pages.try_reserve_exact(count).map_err(|_| CallError {
        call: call.1,
        errno: Errno::ENOMEM,
    })?;
    pages.resize(count, 0_u64);
    let mut grant = abi::grant::GrantAdd {
        address,
        size,
        pages: self::address(&mut pages),
        capacity: capacity(&pages),
        flags,
    };
    // SAFETY: `GrantAdd` is this request's structure; it names `pages` and its length. The call
    // does not change the memory at `address`, and the caller accepts that others use it.
    unsafe { call.perform(fd, &mut grant) }?;
    Ok(pages)
}

pub(crate) fn grant_revoke(
    fd: BorrowedFd<'_>,
    mut revoke: abi::grant::GrantRevoke,
) -> CallResult<()> {
    let call = Call(ioctl::GRANT_REVOKE, "INSULA_GRANT_REVOKE");
    // SAFETY: `GrantRevoke` is this request's structure; its address is only compared.
    unsafe { call.perform(fd, &mut revoke) }.map(drop)
}

pub(crate) fn grant_import(fd: BorrowedFd<'_>, table: u32) -> CallResult<OwnedFd> {
    let mut import = abi::grant::GrantImport { table, reserved: 0 };
    // SAFETY: `GrantImport` is this request's structure and holds no address.
    unsafe { Call(ioctl::GRANT_IMPORT, "INSULA_GRANT_IMPORT").descriptor(fd, &mut import) }
}

pub(crate) fn node_delegation(
    fd: BorrowedFd<'_>,
    mut place: abi::lwk::DelegationPlace,
) -> CallResult<()> {
    let call = Call(ioctl::NODE_DELEGATION, "INSULA_NODE_DELEGATION");
    // SAFETY: `DelegationPlace` is this request's structure; its address is physical, and the
    // module checks that it is in the node's own memory.
    unsafe { call.perform(fd, &mut place) }.map(drop)
}

/// Creates a mirror: its descriptor and first slot.
pub(crate) fn mirror_create(
    fd: BorrowedFd<'_>,
    range: Range<u64>,
    flags: u32,
) -> CallResult<(OwnedFd, u32)> {
    let mut mirror = abi::lwk::MirrorCreate {
        start: range.start,
        end: range.end,
        flags,
        ..Default::default()
    };
    let call = Call(ioctl::MIRROR_CREATE, "INSULA_MIRROR_CREATE");
    // SAFETY: `MirrorCreate` is this request's structure; the module only passes its addresses on.
    let fd = unsafe { call.descriptor(fd, &mut mirror) }?;
    Ok((fd, mirror.slot))
}

/// Has a program leave its node, or go on there.
pub(crate) fn mirror_leave(fd: BorrowedFd<'_>, flags: u64) -> CallResult<abi::lwk::MirrorLeave> {
    let mut left = abi::lwk::MirrorLeave {
        flags,
        ..Default::default()
    };
    let call = Call(ioctl::MIRROR_LEAVE, "INSULA_MIRROR_LEAVE");
    // SAFETY: `MirrorLeave` is this request's structure and holds no address of this process.
    unsafe { call.perform(fd, &mut left) }?;
    Ok(left)
}
