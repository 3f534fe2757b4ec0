//! What must wait for what.

use std::collections::{BTreeMap, BTreeSet};

use crate::name::Name;

/// For each name those that it waits for.
pub type Waits = BTreeMap<Name, BTreeSet<Name>>;

/// A circle in which each waits for the next and the last for the first, if there is one.
pub(super) fn circle(waits: &Waits) -> Option<Vec<Name>> {
    let mut done = BTreeSet::new();
    let mut path = Vec::new();
    waits
        .keys()
        .find_map(|name| walk(waits, name, &mut path, &mut done))
}

/// Goes down from `name`; answers the circle that it meets. `path` leads from the first name here.
fn walk<'a>(
    waits: &'a Waits,
    name: &'a Name,
    path: &mut Vec<&'a Name>,
    done: &mut BTreeSet<&'a Name>,
) -> Option<Vec<Name>> {
    if let Some(begin) = path.iter().position(|&one| one == name) {
        return Some(path[begin..].iter().map(|&one| one.clone()).collect());
    }
    if done.contains(name) {
        return None;
    }
    path.push(name);
    let next = waits.get(name).into_iter().flatten();
    let found = next
        .into_iter()
        .find_map(|one| walk(waits, one, path, done));
    path.pop();
    done.insert(name);
    found
}

/// What waits the other way round, as for taking down what was built up. What is waited for but has
/// no entry of its own is left out; so is the wait that would close a circle, which nothing that was
/// started by one file has, but files change.
pub(super) fn reversed(waits: &Waits) -> Waits {
    let mut reversed: Waits = waits
        .keys()
        .map(|name| (name.clone(), BTreeSet::new()))
        .collect();
    for (name, before) in waits {
        for one in before.iter().filter(|one| waits.contains_key(one)) {
            let entry = reversed.entry(one.clone()).or_default();
            entry.insert(name.clone());
            if circle(&reversed).is_some() {
                reversed.entry(one.clone()).or_default().remove(name);
            }
        }
    }
    reversed
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name(number: u8) -> Name {
        format!("n{number}").parse().unwrap()
    }

    /// Waits among ten names.
    pub(in crate::compose) fn waits(pairs: &[(u8, u8)]) -> Waits {
        let mut waits: Waits = (0..10).map(|one| (name(one), BTreeSet::new())).collect();
        for &(one, before) in pairs {
            waits.get_mut(&name(one)).unwrap().insert(name(before));
        }
        waits
    }

    #[test]
    fn circles_are_found_and_told_in_order() {
        assert_eq!(circle(&waits(&[(1, 2), (2, 3), (1, 3)])), None);
        let found = circle(&waits(&[(0, 1), (1, 2), (2, 3), (3, 1)]));
        assert_eq!(found, Some(vec![name(1), name(2), name(3)]));
        assert_eq!(circle(&waits(&[(4, 4)])), Some(vec![name(4)]));
    }

    proptest! {
        #[test]
        fn a_circle_is_one(pairs in proptest::collection::vec((0_u8..10, 0_u8..10), 0..25)) {
            let waits = waits(&pairs);
            if let Some(circle) = circle(&waits) {
                for (index, one) in circle.iter().enumerate() {
                    let next = &circle[(index + 1) % circle.len()];
                    prop_assert!(waits[one].contains(next));
                }
            }
        }

        #[test]
        fn reversed_never_has_one_and_loses_no_other_wait(
            pairs in proptest::collection::vec((0_u8..10, 0_u8..10), 0..25),
        ) {
            let waits = waits(&pairs);
            let reversed = reversed(&waits);
            prop_assert_eq!(circle(&reversed), None);
            if circle(&waits).is_none() {
                for &(one, before) in &pairs {
                    prop_assert!(reversed[&name(before)].contains(&name(one)));
                }
            }
        }
    }
}
