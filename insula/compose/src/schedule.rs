//! Parallel work in the order of dependencies.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, PoisonError};

use insula_driver::name::Name;

use super::order::Dependencies;

/// Result of the work for each name.
type Results<T, E> = BTreeMap<Name, Result<T, E>>;

/// Does `work` for each name, in a thread of its own, once it is done for all its dependencies;
/// passes the first dependency that failed, if one did. A dependency without an entry counts as
/// done.
///
/// `dependencies` must not have a cycle: it would deadlock.
pub(super) fn run_in_parallel<T: Send, E: Send>(
    dependencies: &Dependencies,
    work: impl Fn(&Name, Option<&Name>) -> Result<T, E> + Sync,
) -> Results<T, E> {
    let completions = Completions {
        done: Mutex::new(BTreeMap::new()),
        changed: Condvar::new(),
    };
    std::thread::scope(|scope| {
        for (name, before) in dependencies {
            let known = before.iter().filter(|one| dependencies.contains_key(one));
            let known: Vec<&Name> = known.collect();
            let (completions, work) = (&completions, &work);
            scope.spawn(move || {
                let mut task = Task {
                    completions,
                    name,
                    result: None,
                };
                task.result = Some(work(name, completions.wait_for(&known)));
            });
        }
    });
    let done = completions.done.into_inner();
    let done = done.unwrap_or_else(PoisonError::into_inner).into_iter();
    done.filter_map(|(name, result)| Some((name, result?)))
        .collect()
}

/// Results of finished work, for the threads that depend on it.
struct Completions<T, E> {
    /// `None` if the work panicked.
    done: Mutex<BTreeMap<Name, Option<Result<T, E>>>>,
    changed: Condvar,
}

impl<T, E> Completions<T, E> {
    /// Waits until all `names` are done. Returns the first that failed.
    fn wait_for<'a>(&self, names: &[&'a Name]) -> Option<&'a Name> {
        let done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        let done = self.changed.wait_while(done, |done| {
            !names.iter().all(|&name| done.contains_key(name))
        });
        let done = done.unwrap_or_else(PoisonError::into_inner);
        let failed = |name: &&&Name| !matches!(done.get(**name), Some(Some(Ok(_))));
        names.iter().find(failed).copied()
    }
}

/// One name's work. Drop publishes its result also after a panic, so that no dependent waits for
/// ever.
struct Task<'a, T, E> {
    completions: &'a Completions<T, E>,
    name: &'a Name,
    result: Option<Result<T, E>>,
}

impl<T, E> Drop for Task<'_, T, E> {
    fn drop(&mut self) {
        let done = self.completions.done.lock();
        let mut done = done.unwrap_or_else(PoisonError::into_inner);
        done.insert(self.name.clone(), self.result.take());
        self.completions.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::super::order::find_cycle;
    use super::super::order::tests::dependencies;
    use super::*;

    /// Runs it; work fails for `broken`. Returns the names in the order of their work, and the
    /// results.
    fn run_all(
        dependencies: &Dependencies,
        broken: &BTreeSet<Name>,
    ) -> (Vec<Name>, Results<(), Option<Name>>) {
        let worked = Mutex::new(Vec::new());
        let work = |name: &Name, failed: Option<&Name>| {
            if failed.is_some() {
                return Err(failed.cloned());
            }
            worked.lock().unwrap().push(name.clone());
            if broken.contains(name) {
                Err(None)
            } else {
                Ok(())
            }
        };
        let results = run_in_parallel(dependencies, work);
        (worked.into_inner().unwrap(), results)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn each_waits_for_its_dependencies(
            pairs in proptest::collection::vec((0_u8..10, 0_u8..10), 0..20),
            broken in proptest::collection::btree_set(0_u8..10, 0..3),
        ) {
            // Dependencies on lower numbers only: no cycles.
            let pairs: Vec<_> = pairs.into_iter().filter(|(one, before)| before < one).collect();
            let dependencies = dependencies(&pairs);
            prop_assert_eq!(find_cycle(&dependencies), None);
            let broken = broken.iter().map(|one| format!("n{one}").parse().unwrap()).collect();
            let (worked, results) = run_all(&dependencies, &broken);
            prop_assert_eq!(results.len(), dependencies.len());
            for (name, before) in &dependencies {
                let at = |name| worked.iter().position(|one| one == name);
                let failed = before.iter().any(|one| results[one].is_err());
                prop_assert_eq!(at(name).is_none(), failed);
                prop_assert_eq!(results[name].is_ok(), !failed && !broken.contains(name));
                prop_assert!(failed || before.iter().all(|one| at(one) < at(name)));
            }
        }
    }

    #[test]
    fn independent_work_is_parallel() {
        // Each meets the others at a barrier: sequential work would deadlock.
        let barrier = std::sync::Barrier::new(10);
        let none = dependencies(&[]);
        let wait_for_all = |_: &Name, _: Option<&Name>| {
            barrier.wait();
            Ok::<_, ()>(())
        };
        assert_eq!(run_in_parallel(&none, wait_for_all).len(), 10);
    }

    #[test]
    fn no_thread_waits_for_work_that_panicked() {
        let dependencies = dependencies(&[(1, 0), (2, 1)]);
        let first: Name = "n0".parse().unwrap();
        let panics = |name: &Name, _: Option<&Name>| {
            assert!(*name != first, "on purpose");
            Ok::<_, ()>(())
        };
        let all = std::panic::AssertUnwindSafe(|| run_in_parallel(&dependencies, panics));
        assert!(std::panic::catch_unwind(all).is_err());
    }

    #[test]
    fn an_unknown_dependency_is_not_waited_for() {
        let mut dependencies = dependencies(&[]);
        let stranger: Name = "stranger".parse().unwrap();
        dependencies.values_mut().for_each(|before| {
            before.insert(stranger.clone());
        });
        assert_eq!(run_all(&dependencies, &BTreeSet::new()).0.len(), 10);
    }
}
