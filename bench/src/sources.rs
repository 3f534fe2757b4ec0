//! Version of the measured sources.

use testbed::host::project;
use testbed::host::tool::{Tool, ToolError};

use crate::record;

/// The commit, marked if the sources have been changed since. Sources unpacked from an archive have
/// none.
pub(crate) fn commit() -> String {
    let Ok(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else {
        return "unknown".to_owned();
    };
    let changed = changes().is_ok_and(|files| !files.is_empty());
    format!(
        "{}{}",
        commit.trim(),
        if changed { " and changes" } else { "" }
    )
}

/// Changes since the commit, as git lists them, without the records.
pub(crate) fn changes() -> Result<Vec<String>, ToolError> {
    let but = format!(":(exclude){}", record::FOLDER);
    let text = git(&["status", "--porcelain", "--", ".", &but])?;
    Ok(text.lines().map(str::to_owned).collect())
}

/// Branches that contain the commit.
pub(crate) fn branches() -> Result<Vec<String>, ToolError> {
    let format = "--format=%(refname:short)";
    let places = ["refs/heads", "refs/remotes"];
    let words = [&["for-each-ref", "--contains", "HEAD", format], &places[..]].concat();
    Ok(git(&words)?.lines().map(str::to_owned).collect())
}

/// Whether that commit is an ancestor of the checked out one; unknown without a repository, or in a
/// shallow one.
#[cfg(test)]
pub(crate) fn is_known(commit: &str) -> Option<bool> {
    let shallow = git(&["rev-parse", "--is-shallow-repository"]).ok()?;
    let comes_after = || git(&["merge-base", "--is-ancestor", commit, "HEAD"]).is_ok();
    (shallow.trim() == "false").then(comes_after)
}

fn git(words: &[&str]) -> Result<String, ToolError> {
    Tool::new("git")
        .args(words)
        .directory(project::root())
        .run()
}
