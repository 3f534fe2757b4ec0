//! Error numbers of system calls.

use crate::hw::memory::room::NoMemory;

/// An error number (include/uapi/asm-generic/errno-base.h and errno.h of Linux).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub u16);

#[expect(missing_docs, reason = "they are the usual names")]
impl Errno {
    pub const EPERM: Self = Self(1);
    pub const ENOENT: Self = Self(2);
    pub const ESRCH: Self = Self(3);
    pub const EINTR: Self = Self(4);
    pub const EIO: Self = Self(5);
    pub const E2BIG: Self = Self(7);
    pub const ENOEXEC: Self = Self(8);
    pub const EBADF: Self = Self(9);
    pub const EAGAIN: Self = Self(11);
    pub const ENOMEM: Self = Self(12);
    pub const EACCES: Self = Self(13);
    pub const EFAULT: Self = Self(14);
    pub const EBUSY: Self = Self(16);
    pub const EEXIST: Self = Self(17);
    pub const EXDEV: Self = Self(18);
    pub const ENODEV: Self = Self(19);
    pub const EISDIR: Self = Self(21);
    pub const EINVAL: Self = Self(22);
    pub const EMFILE: Self = Self(24);
    pub const ENOTTY: Self = Self(25);
    pub const ENOSPC: Self = Self(28);
    pub const ESPIPE: Self = Self(29);
    pub const EPIPE: Self = Self(32);
    pub const ERANGE: Self = Self(34);
    pub const EDEADLK: Self = Self(35);
    pub const ENAMETOOLONG: Self = Self(36);
    pub const ENOLCK: Self = Self(37);
    pub const ENOSYS: Self = Self(38);
    pub const ELOOP: Self = Self(40);
    pub const EOVERFLOW: Self = Self(75);
    pub const EMSGSIZE: Self = Self(90);
    pub const EOPNOTSUPP: Self = Self(95);
    pub const EAFNOSUPPORT: Self = Self(97);
    pub const ENETDOWN: Self = Self(100);
    pub const ECONNRESET: Self = Self(104);
    pub const ENOTCONN: Self = Self(107);
    pub const ETIMEDOUT: Self = Self(110);
    pub const EALREADY: Self = Self(114);
    pub const EINPROGRESS: Self = Self(115);

    /// Within this kernel only, as Linux' ERESTARTSYS: a page of a base mapping has to be faulted
    /// in first.
    pub const EBASEPAGE: Self = Self(600);

    /// Encodes it as the result of a system call.
    #[must_use]
    pub fn as_result(self) -> u64 {
        0_u64.wrapping_sub(self.0.into())
    }
}

impl From<NoMemory> for Errno {
    fn from(_: NoMemory) -> Self {
        Self::ENOMEM
    }
}

/// Encodes the result of a system call.
#[must_use]
pub fn as_result(result: Result<u64, Errno>) -> u64 {
    result.unwrap_or_else(Errno::as_result)
}

/// Decodes the result of a system call of the base.
///
/// # Errors
/// The error, if it is one.
pub fn of_result(result: u64) -> Result<u64, Errno> {
    /// `MAX_ERRNO`.
    const ERRNO_MAX: u64 = 4095;
    match 0_u64.wrapping_sub(result) {
        errno @ 1..=ERRNO_MAX => Err(Errno(errno as u16)),
        _ => Ok(result),
    }
}

/// Decodes the base's answer to a request for a new thread or process: its id.
///
/// # Errors
/// The error; [`Errno::EAGAIN`] if the base has no room for more.
pub fn of_new_task(result: u64) -> Result<u64, Errno> {
    of_result(result).map_err(|error| match error {
        Errno::ENOSPC => Errno::EAGAIN,
        error => error,
    })
}
