//! The program of a policy: a process and its descendants.

use std::fs;
use std::path::Path;

use insula_base::error::Error;
use insula_driver::Driver;
use insula_driver::name::Name;
use insula_exec::program;
use insula_migrate::{MoveRequest, Moved};
use insula_policy::Place;

/// The process that a file names, if it exists.
pub(super) fn pid_of(file: &Path) -> Option<i32> {
    let pid: i32 = fs::read_to_string(file).ok()?.trim().parse().ok()?;
    let exists = pid > 0 && Path::new(&format!("/proc/{pid}")).exists();
    exists.then_some(pid)
}

/// A process and all its descendants, parents first.
pub(super) fn tree(pid: i32) -> Vec<i32> {
    let mut all = vec![pid];
    let mut next = 0;
    while let Some(parent) = all.get(next).copied() {
        all.extend(children(parent));
        next += 1;
    }
    all
}

/// Children of all threads of a process; none if it has ended.
fn children(pid: i32) -> Vec<i32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task"));
    let lists = threads.into_iter().flatten().flatten();
    let lists = lists.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists
        .flat_map(|list| {
            let words = list.split_whitespace();
            words
                .filter_map(|word| word.parse().ok())
                .collect::<Vec<_>>()
        })
        .collect()
}

/// Moves a process.
pub(super) fn move_to(
    driver: &Driver,
    pid: i32,
    (place, node): (Place, &Name),
) -> Result<Moved, Error> {
    match place {
        Place::Base => insula_migrate::to_base(pid),
        Place::Node => {
            let request = MoveRequest {
                pid,
                node,
                polls: program::POLLS,
            };
            insula_migrate::to_node(driver, &request)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_comes_before_its_children() {
        let mut shell = Command::new("sh")
            .args(["-c", "sleep 100 & read line; kill $!"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = shell.id().cast_signed();
        let mut all = tree(pid);
        while all.len() < 2 {
            std::thread::yield_now();
            all = tree(pid);
        }
        assert_eq!(all[0], pid);
        drop(shell.stdin.take());
        shell.wait().unwrap();
        assert_eq!(tree(pid), [pid]);
    }

    #[test]
    fn a_file_without_a_process_names_none() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pid");
        assert_eq!(pid_of(&file), None);
        for (text, pid) in [("x", None), ("-1\n", None), ("999999999\n", None)] {
            fs::write(&file, text).unwrap();
            assert_eq!(pid_of(&file), pid, "{text}");
        }
        let own = std::process::id();
        fs::write(&file, format!("{own}\n")).unwrap();
        assert_eq!(pid_of(&file), Some(own.cast_signed()));
    }
}
