//! What is wrong with nodes, which their supervisors leave in files as their watchers find it.

use std::fs;
use std::io;
use std::path::PathBuf;

use insula_base::root::Root;
use insula_base::state::{AtomicFile, RUN};
use insula_rules::Kind;
use serde::{Deserialize, Serialize};

/// Something that is wrong with a node's kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct NodeFinding {
    /// What kind it is of.
    pub kind: Kind,
    /// What it concerns.
    pub subject: String,
    /// What is wrong, in words.
    pub detail: String,
}

/// What is wrong in one run of a node.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Run {
    /// Time stamp counter at its start: another one means another run.
    start_tsc: u64,
    findings: Vec<NodeFinding>,
}

/// What is wrong with a node in its run that started at this time of the time stamp counter; empty if
/// that is not known.
#[must_use]
pub fn findings(root: &Root, id: u32, start_tsc: u64) -> Vec<NodeFinding> {
    let read = || {
        let text = fs::read(path(root, id)).ok()?;
        serde_json::from_slice::<Run>(&text).ok()
    };
    let run = read().filter(|run| run.start_tsc == start_tsc);
    run.unwrap_or_default().findings
}

/// Leaves what is wrong with a node.
///
/// # Errors
/// The file system's error; what was left before stays.
pub fn keep_findings(
    root: &Root,
    id: u32,
    start_tsc: u64,
    findings: &[NodeFinding],
) -> io::Result<()> {
    let run = Run {
        start_tsc,
        findings: findings.to_vec(),
    };
    let file = AtomicFile::create(&root.path(RUN))?;
    serde_json::to_writer(file.file(), &run)?;
    file.persist(&path(root, id))
}

/// Removes what was left about a node that is removed.
pub fn forget_findings(root: &Root, id: u32) {
    // There may be none.
    let _ = fs::remove_file(path(root, id));
}

fn path(root: &Root, id: u32) -> PathBuf {
    root.path(RUN).join(format!("findings-{id}"))
}

#[cfg(test)]
mod tests {
    use insula_base::root::fake::Tree;

    use super::*;

    #[test]
    fn findings_are_those_of_one_run() {
        let tree = Tree::new(&[("/run/insula/other", "")]);
        let root = tree.root();
        let oops = NodeFinding {
            kind: Kind::Oops,
            subject: "kernel".to_owned(),
            detail: "why".to_owned(),
        };
        assert_eq!(findings(&root, 1, 5), []);
        keep_findings(&root, 1, 5, std::slice::from_ref(&oops)).unwrap();
        assert_eq!(findings(&root, 1, 5), [oops]);
        assert_eq!(findings(&root, 1, 6), []);
        assert_eq!(findings(&root, 2, 5), []);
        forget_findings(&root, 1);
        assert_eq!(findings(&root, 1, 5), []);
    }
}
