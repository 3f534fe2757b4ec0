//! The `insula` command.

mod command;

use std::process::ExitCode;

fn main() -> ExitCode {
    let began_tsc = insula::driver::tsc();
    command::main(began_tsc)
}
