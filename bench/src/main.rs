//! Command `insula-bench`: measures on emulated machines and writes the report.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use insula_bench::benchmark::{self, Benchmark};
use insula_bench::equipment::Equipment;
use insula_bench::plan::Plan;
use insula_bench::{measured, outside, record, report};
use testbed::host::machine::Emulator;
use testbed::host::project;

/// Measures on emulated machines, one benchmark after the other, and writes report.md, charts and
/// results.json of all measurements so far, again after each.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Benchmarks to run; all if none is named.
    names: Vec<String>,
    /// Measurements of each row in each boot of the machine.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    samples: u32,
    /// Boots of the machine.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    boots: u32,
    /// Record for the repository: as often as each benchmark says, in three boots, into
    /// docs/src/measured. Refused unless the sources are a commit on a branch and the host is
    /// quiet. All take about an hour on two cores.
    #[arg(long, conflicts_with_all = ["samples", "boots", "folder"])]
    record: bool,
    /// Measure nothing: write the report of earlier measurements.
    #[arg(long, conflicts_with = "names")]
    report: bool,
    /// Instead of the emulators that the benchmarks name: installed, backports, or bochs, where all cores advance
    /// together, whatever the host has, and time is the number of instructions.
    #[arg(long, value_name = "WHICH", conflicts_with = "record")]
    emulator: Option<Emulator>,
    /// Folder for the results; by default target/bench, and target/bench-WHICH with `--emulator WHICH`.
    #[arg(long)]
    folder: Option<PathBuf>,
}

impl Arguments {
    fn folder(&self) -> PathBuf {
        let of_emulator = |emulator| format!("target/bench-{emulator}");
        let default = || self.emulator.map_or("target/bench".to_owned(), of_emulator);
        let folder = self.folder.clone();
        folder.unwrap_or_else(|| default().into())
    }
}

/// Subfolder of the measured samples.
const SAMPLES: &str = "samples";

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

/// Returns whether all benchmarks could be measured.
fn bench(arguments: &Arguments) -> Result<bool, Box<dyn Error>> {
    let folder = match arguments.record {
        true => project::root().join(record::FOLDER),
        false => arguments.folder(),
    };
    let wanted = wanted(arguments)?;
    let complete = wanted.is_empty() || measure_all(arguments, &wanted, &folder)?;
    write_report(&folder)?;
    println!("bench: {}", folder.join("report.md").display());
    Ok(complete)
}

fn measure_all(
    arguments: &Arguments,
    wanted: &[&Benchmark],
    folder: &Path,
) -> Result<bool, Box<dyn Error>> {
    let mut progress = |line: &str| println!("bench: {line}");
    if arguments.record {
        record::check_sources()?;
    }
    let equipment = Equipment::build(wanted, &mut progress)?;
    if arguments.record {
        record::wait_until_quiet(&mut progress)?;
    }
    let (all, began) = (wanted.len(), Instant::now());
    let mut complete = true;
    for (number, benchmark) in wanted.iter().enumerate() {
        let plan = plan(arguments, benchmark);
        let (name, passed) = (benchmark.name, began.elapsed().as_secs() / 60);
        println!(
            "bench: {name} ({} of {all}, after {passed} min), {} times in {} boots",
            number + 1,
            plan.rounds,
            plan.boots
        );
        match measure(arguments, benchmark, plan, &equipment, folder) {
            Ok(whole) => complete &= whole,
            Err(error) => {
                complete = false;
                println!("bench: {error}");
            }
        }
    }
    Ok(complete)
}

fn plan(arguments: &Arguments, benchmark: &Benchmark) -> Plan {
    match arguments.record {
        true => Plan::record(benchmark),
        false => Plan {
            boots: arguments.boots,
            rounds: arguments.samples,
        },
    }
}

/// Measures a benchmark and stores the samples. Returns whether all rows could be measured.
fn measure(
    arguments: &Arguments,
    benchmark: &Benchmark,
    plan: Plan,
    equipment: &Equipment,
    folder: &Path,
) -> Result<bool, Box<dyn Error>> {
    let began = Instant::now();
    let mut progress = |line: &str| println!("bench: {line}");
    let measured = outside::run(
        benchmark,
        arguments.emulator,
        plan,
        equipment,
        &mut progress,
    )?;
    for error in &measured.errors {
        println!("bench: not all was measured {error}");
    }
    if arguments.record {
        record::check_measured(&measured)?;
    }
    measured.store(&folder.join(SAMPLES))?;
    write_report(folder)?;
    println!("bench: measured in {:.0} s", began.elapsed().as_secs_f64());
    Ok(measured.errors.is_empty())
}

fn write_report(folder: &Path) -> Result<(), Box<dyn Error>> {
    Ok(report::write(
        folder,
        &measured::stored(&folder.join(SAMPLES))?,
    )?)
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
