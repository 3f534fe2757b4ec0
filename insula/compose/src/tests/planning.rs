//! Only what differs is changed.

use std::collections::{BTreeMap, BTreeSet};

use insula_driver::name::Name;
use insula_node::device::fake::Machine as Devices;
use proptest::prelude::*;

use super::fake::{Folder, carried_out, example, foreign, machine};
use crate::{Action, CurrentNode, CurrentState, Plan, RunState};

pub(super) fn actions(plan: &Plan) -> BTreeMap<String, Action> {
    let nodes = plan.report().nodes.into_iter();
    nodes
        .map(|node| (node.name.to_string(), node.action))
        .collect()
}

/// A file of nodes, each with its lines.
pub(super) fn file(nodes: &[(&str, &str)]) -> String {
    let node = |(name, lines): &(&str, &str)| {
        format!("[nodes.{name}]\nimage = \"debian\"\nmemory = \"64M\"\n{lines}\n")
    };
    let image = "[images.debian]\nkernel = \"vmlinux\"\ninitrd = \"initrd.img\"\n";
    image.to_owned() + &nodes.iter().map(node).collect::<String>()
}

#[test]
fn the_examples_can_be_brought_up() {
    for path in ["docs/src/insula.toml", "packaging/insula.toml.example"] {
        let folder = Folder::new();
        let plan = folder.plan(&example(path), &machine(8)).unwrap();
        assert!(
            plan.nodes.len() >= 2
                && plan
                    .dependencies
                    .values()
                    .any(|dependencies| !dependencies.is_empty())
        );
        assert_eq!(plan.projects, ["shop".parse::<Name>().unwrap()]);
    }
}

#[test]
fn only_what_differs_is_changed() {
    let (folder, empty) = (Folder::new(), machine(8));
    let before = file(&[
        ("db", ""),
        ("web", "after = [\"db\"]"),
        ("old", "after = [\"web\"]"),
    ]);
    let plan = folder.plan(&before, &empty).unwrap();
    assert!(
        actions(&plan)
            .values()
            .all(|action| *action == Action::Start)
    );
    let mut current = carried_out(&empty, &plan);

    let after = file(&[("db", ""), ("web", "append = \"quiet\""), ("new", "")]);
    let plan = folder.plan(&after, &current).unwrap();
    let expected = [
        ("db", Action::Keep),
        ("new", Action::Start),
        ("old", Action::Remove),
        ("web", Action::Restart),
    ];
    let expected = expected.map(|(name, action)| (name.to_owned(), action));
    assert_eq!(actions(&plan), expected.into());
    // It depended on the other, and so is stopped before it, though the file does not say so any
    // more.
    let dependencies = &plan.teardown_order[&"web".parse::<Name>().unwrap()];
    assert!(dependencies.contains(&"old".parse::<Name>().unwrap()));

    // A node that has stopped is started again.
    current
        .nodes
        .get_mut(&"db".parse::<Name>().unwrap())
        .unwrap()
        .state = RunState::Stopped;
    assert_eq!(
        actions(&folder.plan(&after, &current).unwrap())["db"],
        Action::Restart
    );
}

#[test]
fn how_it_is_written_makes_no_difference() {
    let (folder, empty) = (Folder::new(), machine(8));
    let plan = folder
        .plan(&file(&[("a", "cpus = 1\nappend = \"quiet\"")]), &empty)
        .unwrap();
    let current = carried_out(&empty, &plan);
    let other =
        file(&[("a", "append = ' quiet'\nready = { log = \"up\" }")]).replace("64M", "65536K");
    assert_eq!(
        actions(&folder.plan(&other, &current).unwrap())["a"],
        Action::Keep
    );
}

#[test]
fn another_kernel_is_another_node() {
    let (folder, empty) = (Folder::new(), machine(8));
    let text = file(&[("a", "")]);
    let current = carried_out(&empty, &folder.plan(&text, &empty).unwrap());
    folder.write("shop/initrd.img", b"another initrd");
    let plan = folder.plan(&text, &current).unwrap();
    assert_eq!(
        (plan.report().images[0].action, actions(&plan)["a"]),
        (Action::Replace, Action::Restart)
    );
    let current = carried_out(&current, &plan);
    assert_eq!(
        folder.plan(&text, &current).unwrap().report().images[0].action,
        Action::Keep
    );
}

#[test]
fn images_without_users_are_removed() {
    let (folder, empty) = (Folder::new(), machine(8));
    let mut current = carried_out(&empty, &folder.plan(&file(&[("a", "")]), &empty).unwrap());
    let none = folder.plan("", &current).unwrap().report();
    assert_eq!(
        (none.images[0].action, none.nodes[0].action),
        (Action::Remove, Action::Remove)
    );
    let image = "debian".parse().ok();
    let other = CurrentNode {
        image,
        ..foreign(&[5])
    };
    current.nodes.insert("other".parse().unwrap(), other);
    assert!(folder.plan("", &current).unwrap().images.is_empty());
}

#[test]
fn an_equal_image_of_two_files_is_one() {
    let (folder, empty) = (Folder::new(), machine(8));
    let one = folder.read(&file(&[("a", "")])).unwrap();
    let two = folder
        .read_as("shop/two.toml", &file(&[("b", "")]))
        .unwrap();
    let plan = folder.plan_of(&[one, two], &empty).unwrap();
    assert_eq!((plan.images.len(), plan.nodes.len()), (1, 2));
    let current = carried_out(&empty, &plan);
    // The other file's node was started from it.
    assert!(folder.plan("", &current).unwrap().images.is_empty());
}

#[test]
fn removed_nodes_free_resources() {
    let (folder, empty) = (Folder::new(), machine(4));
    let text = file(&[("a", "cpus = 2"), ("b", "")]);
    let current = carried_out(&empty, &folder.plan(&text, &empty).unwrap());
    let text = file(&[("c", "cpu_list = \"1-3\"")]);
    let plan = folder.plan(&text, &current).unwrap();
    assert_eq!(carried_out(&current, &plan).nodes.len(), 1);
}

#[test]
fn a_device_is_freed_with_its_node() {
    let (folder, devices, empty) = (Folder::new(), Devices::new(), machine(8));
    let plan = |nodes: &[(&str, &str)], current: &CurrentState| {
        let project = folder.read(&file(nodes)).unwrap();
        Plan::new(&devices.root(), &[project], current)
    };
    let text = "device = \"01:00.0\"";
    let current = carried_out(&empty, &plan(&[("a", text)], &empty).unwrap());
    devices.take_disk();
    assert_eq!(
        actions(&plan(&[("a", text)], &current).unwrap())["a"],
        Action::Keep
    );
    let changed = plan(&[("a", &format!("{text}\nappend = \"quiet\""))], &current);
    assert_eq!(actions(&changed.unwrap())["a"], Action::Restart);
    // Another node can have it once that one is removed, not before.
    assert!(plan(&[("b", text)], &current).is_ok());
    let error = plan(&[("a", text), ("b", text)], &current).unwrap_err();
    assert!(
        error.0[0].message.contains("is already attached to a node"),
        "{error}"
    );
}

#[test]
fn a_policy_is_part_of_a_nodes_digest() {
    let (folder, empty) = (Folder::new(), machine(8));
    let text = |policy: &str| file(&[("a", policy)]);
    let always = text("restart = \"always\"\non_hang = \"restart\"\nno_reboot = true");
    let current = carried_out(&empty, &folder.plan(&always, &empty).unwrap());
    assert_eq!(
        actions(&folder.plan(&always, &current).unwrap())["a"],
        Action::Keep
    );
    assert_eq!(
        actions(&folder.plan(&text(""), &current).unwrap())["a"],
        Action::Restart
    );
    // A default that is spelled out makes no difference.
    let current = carried_out(&empty, &folder.plan(&text(""), &empty).unwrap());
    let same = folder.plan(&text("restart = \"no\"\non_hang = \"ignore\""), &current);
    assert_eq!(actions(&same.unwrap())["a"], Action::Keep);
}

#[test]
fn images_take_memory_too() {
    let (folder, mut empty) = (Folder::new(), machine(4));
    let text = file(&[("a", "")]);
    let mut plan = |available| {
        empty.base.as_mut().unwrap().available = available;
        folder.plan(&text, &empty)
    };
    let error = plan(64 << 20).unwrap_err();
    assert_eq!(error.0[0].line, 6, "{error}");
    assert!(plan(65 << 20).is_ok());
}

#[test]
fn a_file_can_be_read_when_its_kernels_are_gone() {
    let folder = Folder::new();
    let project = folder.read("[images.debian]\ninstalled = \"5.4\"\n");
    assert_eq!(project.unwrap().images.len(), 1);
}

/// Nodes by number: cores, command line, dependencies.
fn any_file() -> impl Strategy<Value = BTreeMap<u8, (u8, u8, BTreeSet<u8>)>> {
    let after = proptest::collection::btree_set(0_u8..8, 0..3);
    proptest::collection::btree_map(0_u8..8, (1_u8..3, 0_u8..2, after), 0..8)
}

fn written(nodes: &BTreeMap<u8, (u8, u8, BTreeSet<u8>)>) -> String {
    let lines = nodes.iter().map(|(number, (cpus, append, after))| {
        let after = after
            .iter()
            .filter(|one| *one < number && nodes.contains_key(one));
        let after: Vec<_> = after.map(|one| format!("n{one}")).collect();
        (
            format!("n{number}"),
            format!("cpus = {cpus}\nappend = \"x={append}\"\nafter = {after:?}"),
        )
    });
    let lines: Vec<_> = lines.collect();
    let lines: Vec<_> = lines
        .iter()
        .map(|(name, lines)| (name.as_str(), lines.as_str()))
        .collect();
    file(&lines)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn from_any_file_to_any_other(first in any_file(), second in any_file()) {
        let (folder, empty) = (Folder::new(), machine(17));
        let plan = folder.plan(&written(&first), &empty).unwrap();
        let before = carried_out(&empty, &plan);
        let again = folder.plan(&written(&first), &before).unwrap();
        prop_assert!(actions(&again).values().all(|action| *action == Action::Keep));
        prop_assert!(again.teardown_order.is_empty());

        let plan = folder.plan(&written(&second), &before).unwrap();
        let after = carried_out(&before, &plan);
        let names: Vec<_> = after.nodes.keys().map(Name::to_string).collect();
        let expected: Vec<_> = second.keys().map(|number| format!("n{number}")).collect();
        prop_assert_eq!(names, expected);
        let mut taken = BTreeSet::from([0]);
        for (number, (cpus, append, _)) in &second {
            let name: Name = format!("n{number}").parse().unwrap();
            let node = &after.nodes[&name];
            prop_assert_eq!(node.cpus.len(), usize::from(*cpus));
            prop_assert!(node.cpus.iter().all(|&cpu| taken.insert(cpu)));
            let old = first.get(number).map(|old| (old.0, old.1));
            let kept = old == Some((*cpus, *append));
            let action = match old {
                _ if kept => Action::Keep,
                Some(_) => Action::Restart,
                None => Action::Start,
            };
            prop_assert_eq!(actions(&plan)[name.as_str()], action);
            prop_assert!(!kept || *node == before.nodes[&name]);
        }
    }
}
