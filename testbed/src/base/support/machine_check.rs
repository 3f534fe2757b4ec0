//! Machine checks, which only the host can cause.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::base::Finding;
use crate::base::support::insula_command::wait_for;
use crate::host::machine::{DONE_PORT, HostRequest};

/// Injects a machine check into each of these cores: an error that concerns another core. Returns when
/// the host has done so: a core takes it before its next instruction.
pub(crate) fn inject(cores: &[u32]) -> Result<(), Finding> {
    for &core in cores {
        let before = fulfilled()?;
        println!("{}", HostRequest::MachineCheck { core }.to_line());
        wait_for("the host to cause a machine check", || {
            Ok((fulfilled()? != before).then_some(()))
        })?;
    }
    Ok(())
}

/// Number of requests that the host has fulfilled, modulo 256.
fn fulfilled() -> Result<u8, Finding> {
    let mut byte = [0];
    File::open("/dev/port")?.read_exact_at(&mut byte, DONE_PORT.into())?;
    Ok(byte[0])
}
