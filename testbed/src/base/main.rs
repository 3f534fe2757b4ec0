//! Plays one scenario inside the emulated machine: `insula-scenario NAME [--soak] [--limit SECONDS]`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use testbed::base::{Context, run, scenario, show_before};

/// Plays a scenario on this machine, which must be one of the testbed's.
#[derive(Parser)]
struct Arguments {
    /// Scenario to play; without it they are listed.
    name: Option<String>,
    /// Play it with long counts.
    #[arg(long)]
    soak: bool,
    /// Seconds after which the machine is ended: shortly before, it prints what everybody does.
    #[arg(long)]
    limit: Option<u64>,
    /// Folder for its files.
    #[arg(long, default_value = "/result")]
    results: PathBuf,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let Some(name) = arguments.name else {
        for scenario in scenario::ALL {
            println!("{:12} {}", scenario.name, scenario.proves);
        }
        return ExitCode::SUCCESS;
    };
    let Some(scenario) = scenario::find(&name) else {
        eprintln!("there is no scenario `{name}`; without a name they are listed");
        return ExitCode::from(2);
    };
    if let Some(seconds) = arguments.limit {
        show_before(Duration::from_secs(seconds));
    }
    let context = Context::new(arguments.soak, &arguments.results);
    match run(scenario, &context) {
        Ok(()) => ExitCode::SUCCESS,
        Err(finding) => {
            eprintln!("{name}: {finding}");
            ExitCode::FAILURE
        }
    }
}
