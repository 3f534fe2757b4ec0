//! Attachments to the base's files and network.

use std::net::TcpListener;

use insula_agent::options::Options;
use insula_driver::name::Name;
use insula_node::attachment::Networking;
use insula_node::{Attachments, RunRequest};

use super::fake::{Folder, carried_out, foreign, machine};
use super::planning::{actions, file};
use super::refusals::{node, nodes, refused};
use crate::{Action, CurrentNode, NodeAction, Plan, PlanError};

const ALL: &str = "rootfs = \"root.erofs\"\nnetwork = true\nip = \"10.78.0.7\"";

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

/// How the only node is started.
fn request(plan: &Plan) -> &RunRequest {
    match &plan.nodes[0].action {
        NodeAction::Start(request) => request,
        other => panic!("not started: {other:?}"),
    }
}

/// Its own part of the command line.
fn append(request: &RunRequest) -> String {
    request.attachments.command_line(&request.spec)
}

#[test]
fn a_node_gets_what_is_asked_for() {
    let (folder, empty) = (Folder::new(), machine(8));
    let text = file(&[("a", &format!("{ALL}\nappend = \"quiet\""))]);
    let plan = folder.plan(&text, &empty).unwrap();
    let request = request(&plan);
    let image = request.attachments.root_image().unwrap();
    assert_eq!(image.path, folder.path("shop/root.erofs"));
    let append = append(request);
    let words: Vec<_> = append.split(' ').collect();
    assert_eq!(
        words,
        [
            "quiet",
            "insula_agent.root=memory",
            "insula_agent.network=yes"
        ]
    );
    let network = request.attachments.network.as_ref();
    let address = network.and_then(|one| one.address);
    assert_eq!(address, Some([10, 78, 0, 7].into()));
}

#[test]
fn a_program_is_part_of_a_nodes_digest() {
    let (folder, empty) = (Folder::new(), machine(8));
    let text = file(&[("a", r#"program = ["/usr/sbin/nginx", "-g", "daemon off;"]"#)]);
    let plan = folder.plan(&text, &empty).unwrap();
    let options = Options::parse(&append(request(&plan)));
    assert_eq!(
        options.run,
        ["/usr/sbin/nginx", "-g", "daemon off;"].map(Vec::from)
    );
    let current = carried_out(&empty, &plan);
    let action = |text: &str| actions(&folder.plan(text, &current).unwrap())["a"];
    assert_eq!(action(&text), Action::Keep);
    assert_eq!(action(&text.replace("off", "on")), Action::Restart);
}

#[test]
fn a_node_without_attachments_gets_none() {
    let plan = Folder::new().plan(&file(&[("a", "overlay = false")]), &machine(8));
    let plan = plan.unwrap();
    let request = request(&plan);
    let Attachments {
        root,
        disks,
        volumes,
        network,
        watch,
    } = &request.attachments;
    assert!(root.is_none() && network.is_none() && disks.is_empty() && watch.is_none());
    assert!(volumes.is_empty());
    assert_eq!(append(request), "");
}

#[test]
fn an_address_or_a_port_puts_it_on_the_network() {
    let port = free_port();
    for key in [
        "ip = \"10.78.0.7\"".to_owned(),
        format!("publish = \"127.77.0.1:{port}:80\""),
    ] {
        let plan = Folder::new().plan(&file(&[("a", &key)]), &machine(8));
        assert!(
            request(&plan.unwrap()).attachments.network.is_some(),
            "{key}"
        );
    }
}

#[test]
fn attachments_are_part_of_a_nodes_digest() {
    let (folder, empty) = (Folder::new(), machine(8));
    let text = file(&[("a", ALL)]);
    let current = carried_out(&empty, &folder.plan(&text, &empty).unwrap());
    let action = |text: &str| actions(&folder.plan(text, &current).unwrap())["a"];
    assert_eq!(action(&text), Action::Keep);
    for (from, to) in [
        ("10.78.0.7", "10.78.0.8"),
        ("ip = \"10.78.0.7\"", ""),
        ("rootfs = \"root.erofs\"", ""),
    ] {
        assert_eq!(action(&text.replace(from, to)), Action::Restart, "{from}");
    }
    // Different content.
    let image = std::fs::read(folder.path("shop/root.erofs")).unwrap();
    folder.write("shop/root.erofs", &[image, b"more".to_vec()].concat());
    assert_eq!(action(&text), Action::Restart);
}

#[test]
fn unavailable_attachments() {
    let address = "ip = \"10.78.0.7\"";
    let refused = refused(
        &Folder::new(),
        &machine(8),
        &[
            ("a bad address", node("ip = \"10.78.0\"")),
            ("a bad port", node("publish = [\"80\", \"http\"]")),
            ("an overlay over nothing", node("overlay = true")),
            ("a missing root", node("rootfs = \"missing\"")),
            ("a root that is none", node("rootfs = \"foreign\"")),
            ("a missing disk", node("disk = \"missing,ro\"")),
            ("an address that is none's", node("ip = \"10.77.0.7\"")),
            (
                "a port twice",
                node("publish = [\"127.77.0.1:7077:80\", \"127.77.0.1:7077:81\"]"),
            ),
            ("no program", node("program = []")),
            ("a program that is no list", node("program = \"nginx\"")),
            (
                "a first program on the lightweight kernel",
                "[nodes.a]\nimage = \"lwk\"\nprogram = [\"ls\"]\n".to_owned(),
            ),
            ("an address for two", nodes(address, address)),
        ],
    );
    insta::assert_snapshot!(refused);
}

#[test]
fn an_address_of_another_node() {
    let (folder, mut current) = (Folder::new(), machine(8));
    let address = Some([10, 78, 0, 7].into());
    let network = Some(Networking {
        publish: Vec::new(),
        address,
        poll_us: 0,
        named: None,
    });
    let other = CurrentNode {
        network,
        ..foreign(&[5])
    };
    current.nodes.insert(name("other"), other);
    let text = file(&[("a", ALL)]);
    let PlanError(diagnostics) = folder.plan(&text, &current).unwrap_err();
    assert_eq!(diagnostics.len(), 1, "{diagnostics:?}");
    assert!(diagnostics[0].message.contains("the node 'other' has"));
    assert!(
        text.lines()
            .nth(diagnostics[0].line - 1)
            .unwrap()
            .starts_with("ip")
    );
}

/// A free port.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.77.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

#[test]
fn a_port_leads_to_one_node_and_can_be_opened() {
    let folder = Folder::new();
    let messages = |text: &str| -> Vec<String> {
        let PlanError(diagnostics) = folder.plan(text, &machine(8)).unwrap_err();
        diagnostics.into_iter().map(|one| one.message).collect()
    };
    let port = free_port();
    let (one, two) = (
        format!("publish = \"127.77.0.1:{port}:80\""),
        format!("publish = [\"127.77.0.1:{port}:8080\"]"),
    );
    let twice = messages(&file(&[("a", &one), ("b", &two)]));
    let expected = format!("the port {port} is also used by the node 'a'");
    assert_eq!(twice, [expected]);

    let listener = TcpListener::bind("127.77.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let refused = messages(&file(&[(
        "a",
        &format!("publish = \"127.77.0.1:{port}:80\""),
    )]));
    assert!(refused[0].contains("cannot be opened"), "{refused:?}");
}
