//! The validation tests of the OCI's runtime-tools, by runc, crun and `insula-oci` on the same machine: what runc passes
//! `insula-oci` does, too, except for a list of tests, each with a reason.

mod exceptions;

use std::collections::BTreeSet;
use std::fs;
use std::io::{Write, stdout};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::oci::{FOLDER, RUNTIME, SCENARIO as OCI, with_root};
use crate::base::{Context, Finding, Scenario};
use crate::host::root::{CONFORMANCE, Root, TESTS};
use exceptions::EXCEPTIONS;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "conformance",
    proves: "the OCI runtime passes the tests that runc passes, or there is a reason",
    machine: crate::base::Shape {
        root: Root::Conformance,
        ..OCI.machine
    },
    // Its root disk takes Go to make, and the tests take an hour.
    bases: &[],
    limit: Duration::from_secs(3 * 3600),
    play,
    ..OCI
};

/// The runtimes: first those that it is compared with.
const RUNTIMES: [&str; 3] = ["runc", "crun", RUNTIME];
/// Seconds that a test may take: containers start slowly on an emulated machine.
const TEST_LIMIT_S: &str = "240";

/// A test's outcome.
#[derive(Clone, Debug, Default)]
struct Outcome {
    status: Option<i32>,
    /// Its lines in the Test Anything Protocol.
    passed: usize,
    failed: Vec<String>,
}

impl Outcome {
    fn is_passed(&self) -> bool {
        self.status == Some(0) && self.failed.is_empty() && self.passed > 0
    }
}

fn play(context: &Context) -> Result<(), Finding> {
    with_root(context, |_| {
        let tests = tests()?;
        let mut passed = Vec::new();
        for runtime in RUNTIMES {
            passed.push(all(runtime, &tests)?);
        }
        show(&tests, &passed);
        compare(&passed[0], &passed[2])
    })
}

/// Names of all tests.
fn tests() -> Result<BTreeSet<String>, Finding> {
    let folder = Path::new(CONFORMANCE).join(TESTS);
    let names =
        fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    names.collect()
}

/// Runs all tests by a runtime; the names of those that pass.
fn all(runtime: &str, tests: &BTreeSet<String>) -> Result<BTreeSet<String>, Finding> {
    let mut passed = BTreeSet::new();
    for test in tests {
        let began = Instant::now();
        let outcome = run(runtime, test)?;
        let took = began.elapsed().as_secs();
        let word = if outcome.is_passed() {
            "passed"
        } else {
            "failed"
        };
        println!("{runtime} {test}: {word}, {} ok, {took} s", outcome.passed);
        for line in &outcome.failed {
            println!("    {line}");
        }
        let _ = stdout().flush();
        if outcome.is_passed() {
            passed.insert(test.clone());
        }
        remove_left(runtime)?;
    }
    Ok(passed)
}

fn run(runtime: &str, test: &str) -> Result<Outcome, Finding> {
    let program = Path::new(CONFORMANCE).join(TESTS).join(test);
    let ended = Command::new("timeout")
        .args(["-k", "5", TEST_LIMIT_S])
        .arg(program)
        .env("RUNTIME", runtime)
        .current_dir(CONFORMANCE)
        .stdin(Stdio::null())
        .output()?;
    let text = String::from_utf8_lossy(&ended.stdout);
    let mut outcome = Outcome {
        status: ended.status.code(),
        ..Outcome::default()
    };
    for line in text.lines().map(str::trim) {
        if line.starts_with("not ok") {
            outcome.failed.push(line.to_owned());
        } else if line.starts_with("ok") {
            outcome.passed += 1;
        }
    }
    if ended.status.code() != Some(0) {
        let errors = String::from_utf8_lossy(&ended.stderr);
        outcome
            .failed
            .extend(errors.lines().take(5).map(str::to_owned));
    }
    Ok(outcome)
}

/// Removes containers that a test has left: one that fails does.
fn remove_left(runtime: &str) -> Result<(), Finding> {
    let listed = Command::new(runtime).args(["list", "-q"]).output()?;
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let kept = fs::read_dir(FOLDER).into_iter().flatten().flatten();
    let kept = kept.map(|entry| entry.file_name().to_string_lossy().into_owned());
    for id in listed.lines().map(str::to_owned).chain(kept) {
        // It may have gone meanwhile.
        let delete = ["delete", "--force", &id];
        Command::new(runtime)
            .args(delete)
            .stderr(Stdio::null())
            .status()?;
    }
    Ok(())
}

/// Prints a table for the documentation.
fn show(tests: &BTreeSet<String>, passed: &[BTreeSet<String>]) {
    for test in tests {
        let marks = passed
            .iter()
            .map(|all| if all.contains(test) { "passed" } else { "" });
        println!("| `{test}` | {} |", marks.collect::<Vec<_>>().join(" | "));
    }
    let counts = passed.iter().map(|all| all.len().to_string());
    println!(
        "| {} | {} |",
        tests.len(),
        counts.collect::<Vec<_>>().join(" | ")
    );
}

/// Compares with runc: only what has a reason fails, and nothing that has one passes.
fn compare(runc: &BTreeSet<String>, own: &BTreeSet<String>) -> Result<(), Finding> {
    let is_exception = |test: &String| EXCEPTIONS.iter().any(|(name, _)| name == test);
    let worse: Vec<_> = runc
        .difference(own)
        .filter(|test| !is_exception(test))
        .collect();
    Finding::unless(worse.is_empty(), || format!("runc passes {worse:?}"))?;
    let better: Vec<_> = own.iter().filter(|test| is_exception(test)).collect();
    Finding::unless(better.is_empty(), || {
        format!("passed, without need of a reason: {better:?}")
    })
}
