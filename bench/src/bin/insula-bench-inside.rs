//! Plays one benchmark inside the emulated machine: `insula-bench-inside NAME --samples N`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use insula_bench::benchmark;
use insula_bench::inside::Inside;
use testbed::base::Finding;

/// Plays a benchmark on this machine, which must be one of the testbed's.
#[derive(Parser)]
struct Arguments {
    /// Benchmark to play.
    name: String,
    /// Measurements of each row.
    #[arg(long)]
    samples: u32,
    /// Folder for the samples.
    #[arg(long, default_value = "/result")]
    results: PathBuf,
}

fn main() -> ExitCode {
    match play(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(finding) => {
            eprintln!("{finding}");
            ExitCode::FAILURE
        }
    }
}

fn play(arguments: &Arguments) -> Result<(), Finding> {
    let name = &arguments.name;
    let found = benchmark::find(name);
    let found = found.ok_or_else(|| Finding::new(format!("there is no benchmark `{name}`")))?;
    (found.inside)(&Inside::new(arguments.samples, &arguments.results)?)
}
