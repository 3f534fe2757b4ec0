//! The command `insula-bench`: measures on emulated machines and writes the report.

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use insula_bench::benchmark::{self, Benchmark};
use insula_bench::{measured, outside, report};

/// Measures on emulated machines, one benchmark after the other, and writes report.md, pictures
/// and results.json of all that has been measured so far.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Which; all if none is named.
    names: Vec<String>,
    /// How often to measure each thing.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    samples: u32,
    /// Only three times: to try it out.
    #[arg(long, conflicts_with = "samples")]
    quick: bool,
    /// Measure nothing: write the report of what has been measured.
    #[arg(long, conflicts_with = "names")]
    report: bool,
    /// Where everything goes.
    #[arg(long, default_value = "target/bench")]
    folder: PathBuf,
}

/// How often with `--quick`.
const QUICK: u32 = 3;

fn main() -> ExitCode {
    match bench(&Arguments::parse()) {
        Ok(complete) if complete => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Answers whether all that was asked for could be measured.
fn bench(arguments: &Arguments) -> Result<bool, Box<dyn Error>> {
    let kept = arguments.folder.join("measured");
    let mut complete = true;
    for benchmark in wanted(arguments)? {
        let count = if arguments.quick {
            QUICK
        } else {
            arguments.samples
        };
        println!("bench: {}, {count} times", benchmark.name);
        let mut tell = |line: &str| println!("bench: {line}");
        let began = std::time::Instant::now();
        match outside::run(benchmark, count, &mut tell) {
            Ok(measured) => {
                for complaint in &measured.complaints {
                    complete = false;
                    println!("bench: not all was measured {complaint}");
                }
                measured.keep(&kept)?;
                println!("bench: measured in {:.0} s", began.elapsed().as_secs_f64());
            }
            Err(error) => {
                complete = false;
                println!("bench: nothing was measured: {error}");
            }
        }
    }
    report::write(&arguments.folder, &measured::kept(&kept)?)?;
    println!("bench: {}", arguments.folder.join("report.md").display());
    Ok(complete)
}

fn wanted(arguments: &Arguments) -> Result<Vec<&'static Benchmark>, String> {
    if arguments.report {
        return Ok(Vec::new());
    }
    if arguments.names.is_empty() {
        return Ok(benchmark::ALL.to_vec());
    }
    let find = |name: &String| {
        benchmark::find(name).ok_or_else(|| {
            let names: Vec<_> = benchmark::ALL.iter().map(|one| one.name).collect();
            format!(
                "there is no benchmark `{name}`; there are {}",
                names.join(", ")
            )
        })
    };
    arguments.names.iter().map(find).collect()
}
