//! Doing many things side by side, each as soon as what it waits for is done.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, PoisonError};

use super::order::Waits;
use crate::name::Name;

/// What came of the work for each name.
type Results<T, E> = BTreeMap<Name, Result<T, E>>;

/// Does `work` for each name, in a thread of its own, once it is done for all that the name waits
/// for; it is told which of these failed, if one did. What is waited for but has no entry counts as
/// done.
///
/// `waits` must have no circle: all in it would wait for ever.
pub(super) fn side_by_side<T: Send, E: Send>(
    waits: &Waits,
    work: impl Fn(&Name, Option<&Name>) -> Result<T, E> + Sync,
) -> Results<T, E> {
    let board = Board {
        done: Mutex::new(BTreeMap::new()),
        changed: Condvar::new(),
    };
    std::thread::scope(|scope| {
        for (name, before) in waits {
            let known = before.iter().filter(|one| waits.contains_key(one));
            let known: Vec<&Name> = known.collect();
            let (board, work) = (&board, &work);
            scope.spawn(move || {
                let mut turn = Turn {
                    board,
                    name,
                    result: None,
                };
                turn.result = Some(work(name, board.wait_for(&known)));
            });
        }
    });
    let done = board.done.into_inner();
    let done = done.unwrap_or_else(PoisonError::into_inner).into_iter();
    done.filter_map(|(name, result)| Some((name, result?)))
        .collect()
}

/// Where results are hung up for those who wait for them.
struct Board<T, E> {
    /// Nothing is known of the result of work that panicked.
    done: Mutex<BTreeMap<Name, Option<Result<T, E>>>>,
    changed: Condvar,
}

impl<T, E> Board<T, E> {
    /// Waits until all `names` are done. Answers the first that failed.
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

/// One name's work. Its result is hung up in any case: those who wait must not do so for ever.
struct Turn<'a, T, E> {
    board: &'a Board<T, E>,
    name: &'a Name,
    result: Option<Result<T, E>>,
}

impl<T, E> Drop for Turn<'_, T, E> {
    fn drop(&mut self) {
        let done = self.board.done.lock();
        let mut done = done.unwrap_or_else(PoisonError::into_inner);
        done.insert(self.name.clone(), self.result.take());
        self.board.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::super::order::circle;
    use super::super::order::tests::waits;
    use super::*;

    /// Plays it; work fails for `broken`. Answers the names in the order of their work, and results.
    fn play(waits: &Waits, broken: &BTreeSet<Name>) -> (Vec<Name>, Results<(), Option<Name>>) {
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
        let results = side_by_side(waits, work);
        (worked.into_inner().unwrap(), results)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn each_waits_for_what_comes_before_it(
            pairs in proptest::collection::vec((0_u8..10, 0_u8..10), 0..20),
            broken in proptest::collection::btree_set(0_u8..10, 0..3),
        ) {
            // Every wait for a lower number: no circles.
            let pairs: Vec<_> = pairs.into_iter().filter(|(one, before)| before < one).collect();
            let waits = waits(&pairs);
            prop_assert_eq!(circle(&waits), None);
            let broken = broken.iter().map(|one| format!("n{one}").parse().unwrap()).collect();
            let (worked, results) = play(&waits, &broken);
            prop_assert_eq!(results.len(), waits.len());
            for (name, before) in &waits {
                let at = |name| worked.iter().position(|one| one == name);
                let failed = before.iter().any(|one| results[one].is_err());
                prop_assert_eq!(at(name).is_none(), failed);
                prop_assert_eq!(results[name].is_ok(), !failed && !broken.contains(name));
                prop_assert!(failed || before.iter().all(|one| at(one) < at(name)));
            }
        }
    }

    #[test]
    fn what_does_not_wait_goes_side_by_side() {
        // Each meets the other: done one after the other, this would wait for ever.
        let barrier = std::sync::Barrier::new(10);
        let none = waits(&[]);
        let meet = |_: &Name, _: Option<&Name>| {
            barrier.wait();
            Ok::<_, ()>(())
        };
        assert_eq!(side_by_side(&none, meet).len(), 10);
    }

    #[test]
    fn nobody_waits_for_work_that_panicked() {
        let waits = waits(&[(1, 0), (2, 1)]);
        let first: Name = "n0".parse().unwrap();
        let panics = |name: &Name, _: Option<&Name>| {
            assert!(*name != first, "on purpose");
            Ok::<_, ()>(())
        };
        let all = std::panic::AssertUnwindSafe(|| side_by_side(&waits, panics));
        assert!(std::panic::catch_unwind(all).is_err());
    }

    #[test]
    fn a_stranger_is_not_waited_for() {
        let mut waits = waits(&[]);
        let stranger: Name = "stranger".parse().unwrap();
        waits.values_mut().for_each(|before| {
            before.insert(stranger.clone());
        });
        assert_eq!(play(&waits, &BTreeSet::new()).0.len(), 10);
    }
}
