//! The validation tests of the OCI's runtime-tools, by runc, crun and `insula-oci` on the same machine: what runc passes
//! `insula-oci` does, too, except for a list of tests, each with a reason; and what it has passed it goes on to.

mod expected;

use std::collections::BTreeSet;
use std::fs;
use std::io::{Write, stdout};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::oci::{FOLDER, RUNTIME, SCENARIO as OCI, with_root};
use crate::base::{Context, Finding, Scenario};
use crate::host::root::{CONFORMANCE, Root, TESTS};
use expected::{EXCEPTIONS, PASSED};

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "conformance",
    proves: "the OCI runtime passes the tests that runc passes, or there is a reason",
    machine: crate::base::Shape {
        root: Root::Conformance,
        ..OCI.machine
    },
    // Its root disk takes Go to make, and the tests take half an hour.
    bases: &[],
    limit: Duration::from_secs(3 * 3600),
    play,
    ..OCI
};

/// The runtimes: it, and those that it is compared with.
const RUNTIMES: [&str; 3] = [RUNTIME, "runc", "crun"];
/// Seconds that a test may take: containers start slowly on an emulated machine.
const TEST_LIMIT_S: &str = "240";
/// Tests that look for control groups of the first version, which this machine does not have.
const OF_GROUPS: [&str; 3] = [
    "linux_cgroups_",
    "delete_resources",
    "delete_only_create_resources",
];

fn play(context: &Context) -> Result<(), Finding> {
    with_root(context, |_| {
        let tests = tests()?;
        let mut passed = Vec::new();
        for runtime in RUNTIMES {
            passed.push(all(runtime, &tests)?);
        }
        show(&tests, &passed);
        compare(&passed[0], &passed[1])
    })
}

/// Names of the tests that this machine can play.
fn tests() -> Result<BTreeSet<String>, Finding> {
    let folder = Path::new(CONFORMANCE).join(TESTS);
    let mut tests = BTreeSet::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if !OF_GROUPS.iter().any(|one| name.starts_with(one)) {
            tests.insert(name);
        }
    }
    Ok(tests)
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
        println!("{runtime} {test}: {word}, {} ok, {took} s", outcome.ok);
        for line in &outcome.complaints {
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

/// A test's outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Outcome {
    status: Option<i32>,
    /// How many of its lines in the Test Anything Protocol say that all is in order.
    ok: usize,
    /// What others say. Some tests have no such lines, but tell of errors.
    complaints: Vec<String>,
}

impl Outcome {
    fn of(status: Option<i32>, output: &str, errors: &str) -> Self {
        let lines = || output.lines().map(str::trim);
        // Those are expected to fail, says the test.
        let is_failed = |line: &&str| line.starts_with("not ok") && !line.contains("# TODO");
        let ok = lines().filter(|line| line.starts_with("ok")).count();
        let mut complaints: Vec<_> = lines().filter(is_failed).map(str::to_owned).collect();
        if ok == 0 {
            let told = lines().filter(|line| line.starts_with("\"error\":"));
            complaints.extend(told.map(str::to_owned));
        }
        if status != Some(0) {
            complaints.extend(errors.lines().take(5).map(str::to_owned));
        }
        Self {
            status,
            ok,
            complaints,
        }
    }

    fn is_passed(&self) -> bool {
        self.status == Some(0) && self.complaints.is_empty()
    }
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
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (output, errors) = (text(&ended.stdout), text(&ended.stderr));
    Ok(Outcome::of(ended.status.code(), &output, &errors))
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
        let marks = passed.iter().map(|all| match all.contains(test) {
            true => "passed",
            false => "failed",
        });
        let reason = EXCEPTIONS.iter().find(|(name, _)| name == test);
        let reason = reason.map_or("", |(_, reason)| reason);
        let marks: Vec<_> = marks.collect();
        println!("| `{test}` | {} | {reason} |", marks.join(" | "));
    }
    let counts = passed.iter().map(|all| all.len().to_string());
    let counts: Vec<_> = counts.collect();
    println!("| of {} | {} | |", tests.len(), counts.join(" | "));
}

/// Compares with runc, and with what was passed before.
fn compare(own: &BTreeSet<String>, runc: &BTreeSet<String>) -> Result<(), Finding> {
    let is_exception = |test: &str| EXCEPTIONS.iter().any(|(name, _)| *name == test);
    let worse = runc.difference(own).filter(|test| !is_exception(test));
    let worse: Vec<_> = worse.collect();
    Finding::unless(worse.is_empty(), || format!("runc passes {worse:?}"))?;
    let lost: Vec<_> = PASSED.iter().filter(|test| !own.contains(**test)).collect();
    Finding::unless(lost.is_empty(), || format!("passed before: {lost:?}"))?;
    let better: Vec<_> = own.iter().filter(|test| is_exception(test)).collect();
    Finding::unless(better.is_empty(), || {
        format!("passed, without need of a reason: {better:?}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_those_that_tests_print() {
        let passed = |status, output: &str| Outcome::of(Some(status), output, "why").is_passed();
        assert!(passed(
            0,
            "TAP version 13\nok 1 - a\nnot ok 2 # TODO b\n1..2\n"
        ));
        assert!(!passed(0, "ok 1 - a\nnot ok 2 - b\n"));
        assert!(!passed(1, "ok 1 - a\n"));
        // Within what a container has printed.
        assert!(!passed(0, "ok 1\n  ---\n  {\n    not ok 3 - c\n"));
        // A test that has no lines of its own.
        assert!(passed(0, "1..0\n"));
        assert!(!passed(
            0,
            "  ---\n  {\n    \"error\": \"it was not called\"\n"
        ));
        assert!(!Outcome::of(None, "ok 1\n", "").is_passed());
    }

    #[test]
    fn what_has_passed_has_no_reason() {
        for (name, reason) in EXCEPTIONS {
            assert!(!PASSED.contains(name) && !reason.is_empty(), "{name}");
        }
    }
}
