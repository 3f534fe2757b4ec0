//! Networks are created with the nodes of a file, and removed with them.

use insula_node::networks::NetworkDefinition;

use super::fake::{Folder, carried_out, foreign, machine};
use super::planning::{actions, file};
use crate::{Action, Plan};

fn networks(plan: &Plan) -> Vec<(String, Action)> {
    let networks = plan.report().networks.into_iter();
    networks
        .map(|one| (one.name.to_string(), one.action))
        .collect()
}

fn one(name: &str, action: Action) -> [(String, Action); 1] {
    [(name.to_owned(), action)]
}

const BACK: &str = "[networks.back]\ninternal = true\n";

#[test]
fn a_network_is_there_before_its_nodes() {
    let (folder, empty) = (Folder::new(), machine(8));
    let text = file(&[("db", "network = \"back\"")]) + BACK;
    let plan = folder.plan(&text, &empty).unwrap();
    assert_eq!(networks(&plan), one("back", Action::Add));
    let current = carried_out(&empty, &plan);
    let node = &current.nodes[&"db".parse().unwrap()];
    assert_eq!(node.network_name().unwrap().as_str(), "back");
    let plan = folder.plan(&text, &current).unwrap();
    assert_eq!(networks(&plan), one("back", Action::Keep));
    assert_eq!(actions(&plan)["db"], Action::Keep);
    // With its description it goes, as do its nodes.
    let plan = folder.plan(&file(&[("web", "")]), &current).unwrap();
    assert_eq!(networks(&plan), one("back", Action::Remove));
    // A node that stays on it keeps it.
    let text = file(&[("db", "network = \"back\"")]);
    assert_eq!(networks(&folder.plan(&text, &current).unwrap()), []);
}

#[test]
fn a_network_changes_when_no_node_is_on_it() {
    let (folder, empty) = (Folder::new(), machine(8));
    let plan = folder.plan(BACK, &empty).unwrap();
    let mut current = carried_out(&empty, &plan);
    let other = "[networks.back]\nsubnet = \"10.90.0.0/16\"\n";
    let plan = folder.plan(other, &current).unwrap();
    assert_eq!(networks(&plan), one("back", Action::Replace));
    let after = carried_out(&current, &plan);
    let back = after.networks.find(&"back".parse().unwrap()).unwrap();
    assert_eq!(back.network.subnet.to_string(), "10.90.0.0/16");
    let mut node = foreign(&[2]);
    let text = file(&[("db", "network = \"back\"")]) + BACK;
    let started = carried_out(&current, &folder.plan(&text, &current).unwrap());
    node.network = started.nodes[&"db".parse().unwrap()].network.clone();
    current.nodes.insert("guest".parse().unwrap(), node);
    let refused = folder.plan(other, &current).unwrap_err();
    assert!(refused.0[0].message.contains("'guest' is on it"));
    // Nor is it removed.
    assert_eq!(networks(&folder.plan("", &current).unwrap()), []);
}

#[test]
fn networks_of_others_are_used_but_not_changed() {
    let (folder, empty) = (Folder::new(), machine(8));
    let mut current = carried_out(&empty, &folder.plan(BACK, &empty).unwrap());
    let by_hand = |network: &mut NetworkDefinition| network.project = None;
    current.networks.named.iter_mut().for_each(by_hand);
    let plan = folder.plan(BACK, &current).unwrap();
    assert_eq!(networks(&plan), one("back", Action::Keep));
    let refused = folder.plan("[networks.back]\n", &current).unwrap_err();
    assert!(refused.0[0].hint.contains("insula network rm back"));
    assert_eq!(networks(&folder.plan("", &current).unwrap()), []);
}

#[test]
fn networks_that_make_no_sense_are_refused() {
    let (folder, empty) = (Folder::new(), machine(8));
    let refused = folder.read("[networks.default]\n").unwrap_err();
    assert!(refused[0].message.contains("the network of all nodes"));
    for (text, why) in [
        ("[networks.back]\nsubnet = \"8.8.0.0/16\"\n", "private"),
        ("[networks.back]\nopen = true\n", "unknown field"),
    ] {
        let refused = folder.read(text).unwrap_err();
        assert!(refused[0].message.contains(why), "{}", refused[0].message);
    }
    let twice =
        "[networks.a]\nsubnet = \"10.90.0.0/16\"\n[networks.b]\nsubnet = \"10.90.0.0/16\"\n";
    let refused = folder.plan(twice, &empty).unwrap_err();
    assert!(refused.0[0].to_string().contains("10.90.0.0/16"));
    let nowhere = file(&[("db", "network = \"bakc\"")]) + BACK;
    let refused = folder.plan(&nowhere, &empty).unwrap_err();
    assert!(refused.0[0].hint.contains("back"), "{}", refused.0[0].hint);
    let texts = [("a.toml", BACK), ("b.toml", "[networks.back]\n")];
    let projects = texts.map(|(path, text)| folder.read_as(path, text).unwrap());
    let refused = folder.plan_of(&projects, &empty).unwrap_err();
    assert!(refused.0[0].message.contains("otherwise"));
}
