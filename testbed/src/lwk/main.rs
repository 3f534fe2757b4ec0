//! Probes a kernel that runs programs: `insula-probe SUBJECT [WORDS]`. Its output on a node is
//! compared with its output on the base.

use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match testbed::lwk::run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("insula-probe: {error}");
            ExitCode::FAILURE
        }
    }
}
