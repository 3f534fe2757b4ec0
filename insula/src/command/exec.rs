//! `insula exec`.

use std::process::ExitCode;

use insula::program::{self, ExecError, ProgramRequest};

use super::cli::Exec;
use super::{Context, Failure, output};

/// Ends only if it fails: by the statuses of a shell, or 125 for a failure of Insula's.
pub(super) fn exec(context: &Context, options: &Exec) -> Result<ExitCode, Failure> {
    let request = ProgramRequest {
        node: &options.name,
        words: &options.words,
        polls: options.polls,
    };
    let failure = match program::exec(&context.driver()?, &request) {
        Ok(never) => match never {},
        Err(failure) => failure,
    };
    output::complain(&failure);
    Ok(ExitCode::from(match failure {
        ExecError::NotFound(_) => 127,
        ExecError::NotExecutable { .. } => 126,
        _ => 125,
    }))
}
