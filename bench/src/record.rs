//! Conditions of figures for the repository, the record: measured from published sources, on a
//! quiet computer.

use std::thread::sleep;
use std::time::{Duration, Instant};

use testbed::host::tool::ToolError;

use crate::circumstances::load;
use crate::measured::Measured;
use crate::sources;

/// Folder of the record in the repository.
pub const FOLDER: &str = "docs/src/measured";
/// Largest load at the start.
const LOAD_MAX: f64 = 1.0;
/// Most cores that others may keep busy meanwhile, on average.
const OTHERS_MAX: f64 = 0.25;
/// Time limit for the load of earlier builds to fall, and interval of polling it: it is an average
/// over a minute.
const TIMEOUT: Duration = Duration::from_secs(240);
const INTERVAL: Duration = Duration::from_secs(5);
/// Number of changed files that are named.
const NAMED: usize = 5;

/// Reason not to record.
#[derive(Debug, thiserror::Error)]
pub enum NotRecorded {
    /// The sources are not a commit's.
    #[error(
        "not recorded: the sources have been changed since the last commit ({0}). Nothing was \
         measured. Commit or stash the changes, or measure without RECORD=1."
    )]
    Changed(String),
    /// The commit is on no branch.
    #[error(
        "not recorded: this commit is on no branch, so that nobody can be sure to find it later. \
         Nothing was measured. Check out a branch that has it, or measure without RECORD=1."
    )]
    NoBranch,
    /// There is no repository.
    #[error(
        "not recorded: git does not name the commit this is. Nothing was measured. Work in a \
         clone of the repository, or measure without RECORD=1.\n{0}"
    )]
    Unknown(#[from] ToolError),
    /// The host is loaded.
    #[error(
        "not recorded: the load of this computer is {load:.2}, and stays above {LOAD_MAX}. Nothing \
         was measured. End what else runs (`top` lists it), or measure without RECORD=1."
    )]
    Load {
        /// Load average of the last minute.
        load: f64,
    },
    /// Other programs ran.
    #[error(
        "not recorded: while {benchmark} was measured, others kept {others:.2} cores busy, where \
         {OTHERS_MAX} are allowed. The earlier record is unchanged. End what else runs \
         (`top` lists it) and record this part again, by PART={benchmark}."
    )]
    Others {
        /// Measured benchmark.
        benchmark: String,
        /// Number of cores.
        others: f64,
    },
    /// A measurement failed.
    #[error(
        "not recorded: not all of {0} could be measured, as printed above. The earlier record is \
         unchanged."
    )]
    Incomplete(String),
}

/// Checks that the sources are published.
///
/// # Errors
/// [`NotRecorded`].
pub fn check_sources() -> Result<(), NotRecorded> {
    check_changes(&sources::changes()?, &sources::branches()?)
}

fn check_changes(changes: &[String], branches: &[String]) -> Result<(), NotRecorded> {
    if !changes.is_empty() {
        let named: Vec<_> = changes.iter().take(NAMED).map(|line| line.trim()).collect();
        let rest = if changes.len() > NAMED { ", …" } else { "" };
        return Err(NotRecorded::Changed(named.join(", ") + rest));
    }
    match branches {
        [] => Err(NotRecorded::NoBranch),
        _ => Ok(()),
    }
}

/// Waits until earlier builds are no longer in the load average.
///
/// # Errors
/// When it stays too high.
pub fn wait_until_quiet(progress: &mut dyn FnMut(&str)) -> Result<(), NotRecorded> {
    let began = Instant::now();
    let mut reported = false;
    loop {
        // Without a load average from the kernel there is no other source.
        let load = load().and_then(|load| load.parse().ok()).unwrap_or(0.0);
        if load <= LOAD_MAX {
            return Ok(());
        }
        if began.elapsed() > TIMEOUT {
            return Err(NotRecorded::Load { load });
        }
        if !reported {
            progress(&format!(
                "the load is {load:.2}; waiting until it is {LOAD_MAX:.0} (four minutes at most)"
            ));
            reported = true;
        }
        sleep(INTERVAL);
    }
}

/// Checks that a measurement can be recorded.
///
/// # Errors
/// When it is incomplete, or others were active.
pub fn check_measured(measured: &Measured) -> Result<(), NotRecorded> {
    let benchmark = measured.benchmark.clone();
    if !measured.errors.is_empty() {
        return Err(NotRecorded::Incomplete(benchmark));
    }
    let others = measured.circumstances.others;
    if others > OTHERS_MAX {
        return Err(NotRecorded::Others { benchmark, others });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measured::fake;

    #[test]
    fn sources_must_be_a_commit_on_a_branch() {
        let lines =
            |texts: &[&str]| -> Vec<String> { texts.iter().map(|&one| one.into()).collect() };
        let main = lines(&["main"]);
        assert!(check_changes(&[], &main).is_ok());
        let unnamed = check_changes(&[], &[]).unwrap_err().to_string();
        assert!(unnamed.contains("on no branch"), "{unnamed}");
        let changed = lines(&[" M a", "?? b", "c", "d", "e", "f"]);
        let changed = check_changes(&changed, &main).unwrap_err().to_string();
        assert!(changed.contains("(M a, ?? b, c, d, e, …)"), "{changed}");
    }

    /// Commits that are rewritten after a measurement have to be measured again.
    #[test]
    fn records_are_of_ancestors_of_this_commit() {
        let samples = testbed::host::project::root().join(FOLDER).join("samples");
        for (benchmark, measured) in crate::measured::stored(&samples).unwrap() {
            let commit = measured.circumstances.commit;
            assert!(
                sources::is_known(&commit) != Some(false),
                "{}: {commit}",
                benchmark.name
            );
        }
        assert_ne!(sources::is_known("0123456789ab"), Some(true));
    }

    #[test]
    fn only_complete_and_undisturbed_measurements_are_recorded() {
        let mut measured = fake::measured("cycle", &[("cycle.pool", &[1.0])]);
        assert!(check_measured(&measured).is_ok());
        measured.circumstances.others = 0.5;
        let error = check_measured(&measured).unwrap_err().to_string();
        assert!(error.contains("others kept 0.50 cores busy"), "{error}");
        assert!(error.contains("PART=cycle"), "{error}");
        measured.errors.push("it died".to_owned());
        let error = check_measured(&measured).unwrap_err();
        assert!(matches!(error, NotRecorded::Incomplete(_)));
    }
}
