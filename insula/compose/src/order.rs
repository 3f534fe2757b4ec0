//! Dependencies between nodes, their cycles and their reverse.

use std::collections::{BTreeMap, BTreeSet};

use insula_driver::name::Name;

/// For each name those that it depends on.
pub type Dependencies = BTreeMap<Name, BTreeSet<Name>>;

/// A dependency cycle, in which each name depends on the next and the last on the first, if there
/// is one.
pub(super) fn find_cycle(dependencies: &Dependencies) -> Option<Vec<Name>> {
    let mut done = BTreeSet::new();
    let mut path = Vec::new();
    dependencies
        .keys()
        .find_map(|name| walk(dependencies, name, &mut path, &mut done))
}

/// Depth-first search from `name`; returns the cycle that it meets. `path` leads from the first
/// name to here.
fn walk<'a>(
    dependencies: &'a Dependencies,
    name: &'a Name,
    path: &mut Vec<&'a Name>,
    done: &mut BTreeSet<&'a Name>,
) -> Option<Vec<Name>> {
    if let Some(first) = path.iter().position(|&one| one == name) {
        return Some(path[first..].iter().map(|&one| one.clone()).collect());
    }
    if done.contains(name) {
        return None;
    }
    path.push(name);
    let next = dependencies.get(name).into_iter().flatten();
    let found = next
        .into_iter()
        .find_map(|one| walk(dependencies, one, path, done));
    path.pop();
    done.insert(name);
    found
}

/// The dependencies reversed, for stopping. Names without an entry of their own are left out; so is
/// a dependency that would close a cycle: nodes started from one file have none, but the file may
/// have changed since.
pub(super) fn reversed(dependencies: &Dependencies) -> Dependencies {
    let mut reversed: Dependencies = dependencies
        .keys()
        .map(|name| (name.clone(), BTreeSet::new()))
        .collect();
    for (name, before) in dependencies {
        for one in before.iter().filter(|one| dependencies.contains_key(one)) {
            let entry = reversed.entry(one.clone()).or_default();
            entry.insert(name.clone());
            if find_cycle(&reversed).is_some() {
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

    /// Dependencies among ten names.
    pub(crate) fn dependencies(pairs: &[(u8, u8)]) -> Dependencies {
        let mut dependencies: Dependencies =
            (0..10).map(|one| (name(one), BTreeSet::new())).collect();
        for &(one, before) in pairs {
            dependencies
                .get_mut(&name(one))
                .unwrap()
                .insert(name(before));
        }
        dependencies
    }

    #[test]
    fn cycles_are_found_in_order() {
        assert_eq!(find_cycle(&dependencies(&[(1, 2), (2, 3), (1, 3)])), None);
        let found = find_cycle(&dependencies(&[(0, 1), (1, 2), (2, 3), (3, 1)]));
        assert_eq!(found, Some(vec![name(1), name(2), name(3)]));
        assert_eq!(find_cycle(&dependencies(&[(4, 4)])), Some(vec![name(4)]));
    }

    proptest! {
        #[test]
        fn a_cycle_is_one(pairs in proptest::collection::vec((0_u8..10, 0_u8..10), 0..25)) {
            let dependencies = dependencies(&pairs);
            if let Some(find_cycle) = find_cycle(&dependencies) {
                for (index, one) in find_cycle.iter().enumerate() {
                    let next = &find_cycle[(index + 1) % find_cycle.len()];
                    prop_assert!(dependencies[one].contains(next));
                }
            }
        }

        #[test]
        fn reversed_has_no_cycle_and_loses_no_other_dependency(
            pairs in proptest::collection::vec((0_u8..10, 0_u8..10), 0..25),
        ) {
            let dependencies = dependencies(&pairs);
            let reversed = reversed(&dependencies);
            prop_assert_eq!(find_cycle(&reversed), None);
            if find_cycle(&dependencies).is_none() {
                for &(one, before) in &pairs {
                    prop_assert!(reversed[&name(before)].contains(&name(one)));
                }
            }
        }
    }
}
