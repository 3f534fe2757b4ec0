//! Moving the processes of a container together: all of them, or none.

use std::time::Duration;

use insula_base::error::Error;
use insula_driver::Driver;
use insula_driver::name::Name;

use crate::{MoveRequest, Moved, check, is_on_node, proc, to_base, to_node};

/// Rounds in which processes may have made others before all were moved.
const ROUNDS_MAX: usize = 50;

/// Lists the ids of the processes that there are now.
pub type Processes<'a> = &'a dyn Fn() -> Result<Vec<i32>, Error>;

/// What a move of several processes took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupMoved {
    /// Their ids.
    pub processes: Vec<i32>,
    /// Number of their threads.
    pub threads: usize,
    /// The longest time for which one was stopped.
    pub stopped_for: Duration,
}

impl GroupMoved {
    fn add(&mut self, pid: i32, moved: Moved) {
        self.processes.push(pid);
        self.threads += moved.threads;
        self.stopped_for = self.stopped_for.max(moved.stopped_for);
    }
}

/// Checks that all processes can be moved to a node.
///
/// # Errors
/// Why not; nothing was touched.
pub fn check_group(
    driver: &Driver,
    processes: Processes<'_>,
    (node, polls): (&Name, u64),
) -> Result<(), Error> {
    let of_each = processes()?.into_iter().filter(|&pid| exists(pid));
    let requests = of_each.map(|pid| MoveRequest { pid, node, polls });
    requests.into_iter().try_for_each(|one| check(driver, &one))
}

/// Moves all processes to a node, also those that they make meanwhile. This process must be single-threaded.
///
/// # Errors
/// Why not all of them were moved; they go on where they were, unless the error says otherwise.
pub fn group_to_node(
    driver: &Driver,
    processes: Processes<'_>,
    (node, polls): (&Name, u64),
) -> Result<GroupMoved, Error> {
    let mut moved = GroupMoved::default();
    for _ in 0..ROUNDS_MAX {
        let left = left_on_base(processes)?;
        if left.is_empty() {
            return Ok(moved);
        }
        for pid in left {
            match to_node(driver, &MoveRequest { pid, node, polls }) {
                Ok(one) => moved.add(pid, one),
                // It has ended meanwhile.
                Err(_) if !exists(pid) => {}
                Err(error) => return Err(undone(&moved, error)),
            }
        }
    }
    let error = Error::new("its processes go on making others, faster than they are moved");
    Err(undone(&moved, error))
}

/// Those that are not on a node yet.
fn left_on_base(processes: Processes<'_>) -> Result<Vec<i32>, Error> {
    let is_left = |&pid: &i32| match is_on_node(pid) {
        Ok(is_there) => !is_there,
        Err(_) => exists(pid),
    };
    Ok(processes()?.into_iter().filter(is_left).collect())
}

/// Moves those back that were moved, and says what that leaves.
fn undone(moved: &GroupMoved, error: Error) -> Error {
    let back = moved.processes.iter().rev().map(|&pid| to_base(pid));
    let stays = back.filter(|back| back.is_err()).count();
    match stays {
        0 => error.leaving("all its processes go on where they were"),
        _ => error.leaving("some of its processes go on on the node"),
    }
}

/// Moves all processes that are on a node back to the base.
///
/// # Errors
/// Why not all of them were moved; each goes on where it is.
pub fn group_to_base(processes: Processes<'_>) -> Result<GroupMoved, Error> {
    let mut moved = GroupMoved::default();
    let there = processes()?.into_iter();
    for pid in there.filter(|&pid| is_on_node(pid).unwrap_or(false)) {
        match to_base(pid) {
            Ok(one) => moved.add(pid, one),
            Err(_) if !exists(pid) => {}
            Err(error) => return Err(error.leaving("each of its processes goes on where it is")),
        }
    }
    Ok(moved)
}

fn exists(pid: i32) -> bool {
    proc::exists(pid).unwrap_or(false)
}
