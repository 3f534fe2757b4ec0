//! The processes of a container that `insula-oci` has created.

use std::process::ExitCode;

use super::cli::OciPart;
use super::exec::{FAILED, fail};
use super::{Context, Failure};

pub(super) fn part(context: &Context, part: &OciPart) -> Result<ExitCode, Failure> {
    let ended = match part {
        OciPart::Run { id } => insula_oci::run(id, context.start_tsc),
        OciPart::Exec { id, process } => insula_oci::join(id, process),
        OciPart::Guard { id } => return Ok(insula_oci::guard(id).map(|()| ExitCode::SUCCESS)?),
        OciPart::Hooks { list, id } => {
            return Ok(insula_oci::call_hooks(list, id).map(|()| ExitCode::SUCCESS)?);
        }
        OciPart::Forget { id } => return Ok(insula_oci::forget(id).map(|()| ExitCode::SUCCESS)?),
    };
    Ok(ended.unwrap_or_else(|error| fail(&error, FAILED)))
}
