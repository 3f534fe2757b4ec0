//! Mutual exclusion: one command at a time for each project.

use std::collections::BTreeSet;

use insula_base::error::Error;
use insula_base::root::Root;
use insula_base::state::{self, Lock};
use insula_driver::name::Name;

/// Locks on projects, held as long as this lives.
#[derive(Debug)]
pub struct Locked {
    _locks: Vec<Lock>,
}

/// Locks projects; calls `on_wait` for each one that another command has locked.
///
///
/// # Errors
/// Why one cannot be locked; none is.
pub fn lock<'a>(
    root: &Root,
    projects: impl IntoIterator<Item = &'a Name>,
    on_wait: impl Fn(&Name),
) -> Result<Locked, Error> {
    // In the order of their names, so that two commands cannot deadlock.
    let projects: BTreeSet<&Name> = projects.into_iter().collect();
    let locks = projects.into_iter().map(|project| {
        let file = format!("project-{project}");
        let locked = state::try_lock(root, &file).and_then(|locked| match locked {
            Some(lock) => Ok(lock),
            None => {
                on_wait(project);
                state::lock(root, &file)
            }
        });
        locked.map_err(|error| {
            let what = format!("the project '{project}' cannot be locked");
            Error::new(what).because(error).untouched()
        })
    });
    let locks = locks.collect::<Result<_, _>>()?;
    Ok(Locked { _locks: locks })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use insula_base::root::fake::Tree;

    use super::*;

    #[test]
    fn a_project_is_locked_by_one_command_at_a_time() {
        let tree = Tree::new(&[]);
        let root = tree.root();
        let [shop, mail]: [Name; 2] = ["shop", "mail"].map(|name| name.parse().unwrap());
        let none = |_: &Name| panic!("waits");
        let first = lock(&root, [&shop], none).unwrap();
        drop(lock(&root, [&mail, &mail], none).unwrap());
        let (sender, receiver) = mpsc::channel();
        thread::scope(|scope| {
            let second = scope.spawn(|| {
                let on_wait = |name: &Name| sender.send(name.clone()).unwrap();
                lock(&root, [&shop, &mail], on_wait).map(drop)
            });
            assert_eq!(receiver.recv().unwrap(), shop);
            assert!(!second.is_finished());
            drop(first);
            second.join().unwrap().unwrap();
        });
    }
}
