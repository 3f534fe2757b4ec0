//! The `insula` command.

mod command;

use std::process::ExitCode;

fn main() -> ExitCode {
    let start_tsc = insula::driver::tsc();
    command::main(start_tsc)
}
