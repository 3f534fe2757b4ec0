//! Each refusal, as a user sees it.

use std::fmt::Write;

use insula_driver::name::Name;
use insula_node::cores::ChosenCore;

use super::fake::{Folder, carried_out, foreign, machine};
use crate::{CurrentState, PlanError, RunState};

/// A file with an image, and a node with these lines.
pub(super) fn node(lines: &str) -> String {
    format!("[images.debian]\nkernel = \"vmlinux\"\n\n[nodes.web]\nimage = \"debian\"\n{lines}\n")
}

/// Two nodes with these lines.
pub(super) fn nodes(web: &str, db: &str) -> String {
    node(&format!("{web}\n\n[nodes.db]\nimage = \"debian\"\n{db}"))
}

/// The errors for each of these files on that machine.
pub(super) fn refused(folder: &Folder, current: &CurrentState, files: &[(&str, String)]) -> String {
    let mut all = String::new();
    for (what, text) in files {
        let Err(error) = folder.plan(text, current) else {
            panic!("{what} is not refused");
        };
        for diagnostic in &error.0 {
            assert!(!diagnostic.message.contains("touched"), "{diagnostic}");
        }
        writeln!(all, "## {what}\n{}", folder.named(&shown(&error))).unwrap();
    }
    all
}

fn shown(error: &PlanError) -> String {
    let diagnostics: Vec<_> = error.0.iter().map(ToString::to_string).collect();
    diagnostics.join("\n") + "\n"
}

#[test]
fn malformed_files() {
    let refused = refused(
        &Folder::new(),
        &machine(8),
        &[
            ("no TOML", "[nodes.web\nimage = 1".into()),
            ("no text", "[nodes.web]\nimage = 1".into()),
            ("an unknown table", "[node.web]\nimage = \"debian\"".into()),
            ("an unknown key", node("colour = \"red\"")),
            (
                "an unknown key of an image",
                "[images.a]\npath = \"b\"".into(),
            ),
            ("an unknown key of ready", node("ready = { text = \"a\" }")),
            ("a node without an image", "[nodes.web]\ncpus = 1".into()),
            (
                "a server of no node",
                node("[servers.db.file]\ncommand = [\"insula-files\"]"),
            ),
            (
                "a server without a program",
                node("[servers.web.file]\ncommand = []"),
            ),
            ("a name twice", node("[nodes.web]\nimage = \"debian\"")),
            ("a key twice", node("cpus = 1\ncpus = 2")),
            ("a bad name", "[nodes.\"a/b\"]\nimage = \"debian\"".into()),
            (
                "a bad name of an image",
                "[nodes.web]\nimage = \"a b\"".into(),
            ),
            ("a bad project", "project = \"-\"".into()),
            ("a bad number", node("cpus = -1")),
            ("a bad list of cores", node("cpu_list = \"2-\"")),
            ("a bad size", node("memory = \"lots\"")),
            ("a bad policy", node("restart = \"sometimes\"")),
            ("a bad action", node("on_hang = \"wait\"")),
            ("a bad device", node("device = [\"nvme0\"]")),
            ("a bad size among others", node("memory = [\"2M\", \"3M\"]")),
            ("memory that is a number", node("memory = 512")),
            (
                "a bad layout",
                "[images.a]\nkernel = \"b\"\nlayout = \"c\"".into(),
            ),
        ],
    );
    insta::assert_snapshot!(refused);
}

#[test]
fn inconsistent_files() {
    let refused = refused(
        &Folder::new(),
        &machine(8),
        &[
            ("a later version", format!("version = 2\n{}", node(""))),
            ("no cores", node("cpus = 0")),
            ("too many cores", node("cpus = 257")),
            ("cores in two ways", node("cpus = 1\ncpu_list = \"1\"")),
            ("fewer cores later", node("cpus = 3\nmax_cpus = 2")),
            ("a way to share no core", node("share_by = \"nmi\"")),
            ("no memory", node("memory = []")),
            ("nothing to be ready by", node("ready = { log = \"\" }")),
            ("after an unknown node", node("after = [\"nobody\"]")),
            ("after itself", node("after = [\"web\"]")),
            ("a cycle", nodes("after = [\"db\"]", "after = [\"web\"]")),
            ("an image of nothing", "[images.a]".into()),
            (
                "an image of both",
                "[images.a]\ninstalled = \"6.1\"\nkernel = \"b\"".into(),
            ),
            (
                "an agent for a kernel of one's own",
                "[images.a]\nkernel = \"vmlinux\"\nagent = true".into(),
            ),
            (
                "something for no agent",
                "[images.a]\ninstalled = \"6.1\"\ncontent = \"shop\"".into(),
            ),
            (
                "a kernel that is not installed",
                "[images.a]\ninstalled = \"5.4\"".into(),
            ),
            ("two that are", "[images.a]\ninstalled = \"6\"".into()),
            (
                "one for an agent that is not installed",
                "[images.a]\ninstalled = \"5.4\"\nagent = true".into(),
            ),
            (
                "several at once",
                nodes("cpus = 0\nafter = [\"a\"]", "memory = []"),
            ),
        ],
    );
    insta::assert_snapshot!(refused);
}

#[test]
fn unavailable_resources() {
    let folder = Folder::new();
    let image = |lines: &str| format!("[images.debian]\n{lines}\n");
    let many = |lines: &str| {
        let node = |number| format!("[nodes.n{number}]\nimage = \"debian\"\n{lines}\n");
        image("kernel = \"vmlinux\"") + &(0..20).map(node).collect::<String>()
    };
    let refused = refused(
        &folder,
        &machine(8),
        &[
            (
                "a server of Linux",
                node("[servers.web.file]\ncommand = [\"insula-files\"]"),
            ),
            ("a missing kernel", image("kernel = \"missing\"")),
            (
                "a missing initrd",
                image("kernel = \"vmlinux\"\ninitrd = \"missing\""),
            ),
            ("what is no kernel", image("kernel = \"foreign\"")),
            ("an unknown image", "[nodes.web]\nimage = \"debain\"".into()),
            ("core 0", node("cpu_list = \"0\"")),
            ("a core twice", node("cpu_list = \"1,1\"")),
            ("a core that is not there", node("cpu_list = \"6-8\"")),
            (
                "a core for two",
                nodes("cpu_list = \"1-3\"", "cpu_list = \"3-4\""),
            ),
            ("more cores than there are", node("cpus = 8")),
            ("more together", nodes("cpus = 4", "cpus = 4")),
            (
                "more than the listed ones leave",
                nodes("cpu_list = \"2-6\"", "cpus = 3"),
            ),
            ("more memory than there is", node("memory = \"64G\"")),
            (
                "more together",
                nodes("memory = \"5G\"", "memory = [\"2G\", \"2G\"]"),
            ),
            (
                "a NUMA node that is not there",
                node("memory = \"1G,numa=3\""),
            ),
            ("too little memory", node("memory = \"16M\"")),
            ("a device that is not there", node("device = \"01:00.0\"")),
            (
                "a device twice",
                node("device = [\"01:00.0\", \"0000:01:00.0\"]"),
            ),
            (
                "a device for two",
                nodes("device = \"01:00.0\"", "device = \"01:00.0\""),
            ),
            ("a refused option", node("append = \"quiet acpi=off\"")),
            ("a bad character", node("append = \"quiet\\u0007\"")),
        ],
    );
    insta::assert_snapshot!(refused);
    let nodes = [(
        "more nodes than there is low memory",
        many("memory = \"64M\""),
    )];
    insta::assert_snapshot!(self::refused(&folder, &machine(32), &nodes));
}

#[test]
fn conflicts_with_others() {
    let folder = Folder::new();
    let mut current = machine(8);
    let name = |text: &str| -> Name { text.parse().unwrap() };
    current.nodes.insert(name("web"), foreign(&[3]));
    current.view.mark_used(&[ChosenCore { cpu: 3, apic_id: 3 }]);
    let starting = RunState::Starting;
    current.nodes.insert(
        name("db"),
        crate::CurrentNode {
            state: starting,
            ..foreign(&[])
        },
    );
    current.images.insert(name("other"), None);
    let refused = refused(
        &folder,
        &current,
        &[
            ("a node of another", node("")),
            (
                "a node that is being started",
                nodes("", "").replace(".web", ".cache"),
            ),
            (
                "a core of another's node",
                node("cpu_list = \"3\"").replace(".web", ".cache"),
            ),
            (
                "an image of another",
                "[images.other]\nkernel = \"vmlinux\"".into(),
            ),
        ],
    );
    insta::assert_snapshot!(refused);
}

#[test]
fn conflicts_between_files() {
    let folder = Folder::new();
    let read = |path: &str, text: &str| folder.read_as(path, text).unwrap();
    let refused = |one: &str, two: &str, second: &str| {
        let projects = [read("shop/insula.toml", one), read(second, two)];
        let error = folder.plan_of(&projects, &machine(8)).unwrap_err();
        folder.named(&shown(&error))
    };
    let (one, two) = (node("cpu_list = \"3\""), node("").replace(".web", ".db"));
    let texts = [
        refused(&one, &one, "shop/two.toml"),
        refused(&one, &two.replace("vmlinux", "foreign"), "shop/two.toml"),
        refused(
            &one,
            &("project = \"shop\"\n".to_owned() + &two),
            "shop/two.toml",
        ),
    ];
    insta::assert_snapshot!(texts.join("\n"));
}

#[test]
fn a_project_belongs_to_its_file() {
    let folder = Folder::new();
    let plan = folder.plan(&node(""), &machine(8)).unwrap();
    let current = carried_out(&machine(8), &plan);
    let other = folder
        .read_as("other.toml", &format!("project = \"shop\"\n{}", node("")))
        .unwrap();
    let error = folder.plan_of(&[other], &current);
    insta::assert_snapshot!(folder.named(&shown(&error.unwrap_err())));
}

#[test]
fn the_whole_refusal() {
    let folder = Folder::new();
    let error = folder
        .plan(&node("cpu_list = \"0\""), &machine(2))
        .unwrap_err();
    insta::assert_snapshot!(folder.named(&error.to_string()));
    let json = serde_json::to_string_pretty(&error.0).unwrap();
    insta::assert_snapshot!(folder.named(&json));
}

#[test]
fn a_folder_whose_name_is_no_name() {
    let folder = Folder::new();
    let diagnostics = folder.read_as("a b/insula.toml", "").unwrap_err();
    insta::assert_snapshot!(folder.named(&diagnostics[0].to_string()));
    assert_eq!(
        folder.read_as("a b/two.toml", "").unwrap().name.as_str(),
        "two"
    );
    assert_eq!(
        folder
            .read_as("shop/insula.toml", "")
            .unwrap()
            .name
            .as_str(),
        "shop"
    );
    let named = folder.read_as("a b/insula.toml", "project = \"c\"");
    assert_eq!(named.unwrap().name.as_str(), "c");
}
