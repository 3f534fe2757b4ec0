//! What figures have to be like to be kept in the repository, as a record: of sources that anybody
//! can have, on a computer that does nothing else.

use std::thread::sleep;
use std::time::{Duration, Instant};

use testbed::tool::ToolError;

use crate::circumstances::load;
use crate::measured::Measured;
use crate::sources;

/// Where records lie in the repository.
pub const FOLDER: &str = "docs/src/measured";
/// Most load when it begins.
const LOAD_MAX: f64 = 1.0;
/// Most cores that others may keep busy meanwhile, on average.
const OTHERS_MAX: f64 = 0.25;
/// How long the load may take to come down from what was built just before, and how often it is
/// looked at: it is an average over a minute.
const PATIENCE: Duration = Duration::from_secs(240);
const INTERVAL: Duration = Duration::from_secs(5);
/// So many changed files are named.
const NAMED: usize = 5;

/// Why nothing is recorded.
#[derive(Debug, thiserror::Error)]
pub enum NotRecorded {
    /// The sources are no commit's.
    #[error(
        "not recorded: the sources have been changed since the last commit ({0}). Nothing was \
         measured. Commit or stash the changes, or measure without RECORD=1."
    )]
    Changed(String),
    /// Nobody could find the commit.
    #[error(
        "not recorded: this commit is on no branch, so that nobody can be sure to find it later. \
         Nothing was measured. Check out a branch that has it, or measure without RECORD=1."
    )]
    Astray,
    /// There is no repository.
    #[error(
        "not recorded: git does not tell which commit this is. Nothing was measured. Work in a \
         clone of the repository, or measure without RECORD=1.\n{0}"
    )]
    Unknown(#[from] ToolError),
    /// Something else runs.
    #[error(
        "not recorded: the load of this computer is {load:.2}, and stays above {LOAD_MAX}. Nothing \
         was measured. End what else runs (`top` tells), or measure without RECORD=1."
    )]
    Load {
        /// The average of the last minute.
        load: f64,
    },
    /// Something else ran.
    #[error(
        "not recorded: while {benchmark} was measured, others kept {others:.2} cores busy, where \
         {OTHERS_MAX} are allowed. The record from before is as it was. End what else runs \
         (`top` tells) and record this part again, by PART={benchmark}."
    )]
    Others {
        /// What was measured.
        benchmark: String,
        /// How many cores.
        others: f64,
    },
    /// Something failed.
    #[error(
        "not recorded: not all of {0} could be measured, as told above. The record from before is \
         as it was."
    )]
    Incomplete(String),
}

/// Whether anybody can have these sources.
///
/// # Errors
/// [`NotRecorded`].
pub fn check_sources() -> Result<(), NotRecorded> {
    judge_sources(&sources::changes()?, &sources::branches()?)
}

fn judge_sources(changes: &[String], branches: &[String]) -> Result<(), NotRecorded> {
    if !changes.is_empty() {
        let named: Vec<_> = changes.iter().take(NAMED).map(|line| line.trim()).collect();
        let rest = if changes.len() > NAMED { ", …" } else { "" };
        return Err(NotRecorded::Changed(named.join(", ") + rest));
    }
    match branches {
        [] => Err(NotRecorded::Astray),
        _ => Ok(()),
    }
}

/// Waits until what was built just before is no longer in the load.
///
/// # Errors
/// When it stays too high.
pub fn wait_until_quiet(tell: &mut dyn FnMut(&str)) -> Result<(), NotRecorded> {
    let began = Instant::now();
    let mut told = false;
    loop {
        // Where the kernel does not tell, nobody else does.
        let load = load().and_then(|load| load.parse().ok()).unwrap_or(0.0);
        if load <= LOAD_MAX {
            return Ok(());
        }
        if began.elapsed() > PATIENCE {
            return Err(NotRecorded::Load { load });
        }
        if !told {
            tell(&format!(
                "the load is {load:.2}; waiting until it is {LOAD_MAX:.0} (four minutes at most)"
            ));
            told = true;
        }
        sleep(INTERVAL);
    }
}

/// Whether what was measured can be kept.
///
/// # Errors
/// When it is not all, or others were at work.
pub fn check_measured(measured: &Measured) -> Result<(), NotRecorded> {
    let benchmark = measured.benchmark.clone();
    if !measured.complaints.is_empty() {
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
        assert!(judge_sources(&[], &main).is_ok());
        let astray = judge_sources(&[], &[]).unwrap_err().to_string();
        assert!(astray.contains("on no branch"), "{astray}");
        let changed = lines(&[" M a", "?? b", "c", "d", "e", "f"]);
        let changed = judge_sources(&changed, &main).unwrap_err().to_string();
        assert!(changed.contains("(M a, ?? b, c, d, e, …)"), "{changed}");
    }

    /// Who rewrites commits after they were measured has to measure again.
    #[test]
    fn records_are_of_commits_that_this_one_comes_after() {
        let samples = testbed::project::root().join(FOLDER).join("samples");
        for (benchmark, measured) in crate::measured::kept(&samples).unwrap() {
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
    fn only_what_is_whole_and_undisturbed_is_kept() {
        let mut measured = fake::measured("cycle", &[("cycle.pool", &[1.0])]);
        assert!(check_measured(&measured).is_ok());
        measured.circumstances.others = 0.5;
        let told = check_measured(&measured).unwrap_err().to_string();
        assert!(told.contains("others kept 0.50 cores busy"), "{told}");
        assert!(told.contains("PART=cycle"), "{told}");
        measured.complaints.push("it died".to_owned());
        let told = check_measured(&measured).unwrap_err();
        assert!(matches!(told, NotRecorded::Incomplete(_)));
    }
}
