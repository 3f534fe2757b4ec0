//! The link to a program's own file, of a program whose user may not change it in the base.

use std::ffi::CStr;

use nix::unistd::{Uid, execve, setuid};

use crate::lwk::{Named, ProbeError};

/// A user without privileges.
const NOBODY: u32 = 65534;
const SHELL: &CStr = c"/bin/dash";
/// The link is read by a program, and executed by the shell.
const SCRIPT: &CStr = c"readlink /proc/self/exe; exec /proc/self/exe -c 'echo again'";
const PATH: &CStr = c"PATH=/usr/bin:/bin";

pub(crate) fn probe() -> Result<(), ProbeError> {
    setuid(Uid::from_raw(NOBODY)).named("setuid")?;
    execve(SHELL, &[SHELL, c"-c", SCRIPT], &[PATH])
        .named("execve")
        .map(drop)
}
