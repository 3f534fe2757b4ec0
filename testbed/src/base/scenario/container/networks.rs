//! Networks with names: nodes of one reach each other and the world, and none of another one.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::agent::make_programs;
use crate::base::support::insula_command::{
    assert_equal, insula, insula_json, names, text, try_insula, wait_for, with_cleanup,
};
use crate::base::support::nodes::in_node::{build_image, script};
use crate::base::support::supervisor_process;
use crate::base::support::virtio_modules::{
    NETWORK_MODULES, SOCKET_MODULES, load_sockets, modprobe, unload,
};
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "networks",
    proves: "nodes of a network with a name reach each other and other hosts, and none of another network",
    machine: Shape::USUAL,
    module: Module::Loaded,
    bases: &[Flavour::V6_12],
    limit: std::time::Duration::from_secs(600),
    soak_limit: None,
    play,
};

const CONTENT: &str = "/tmp/networks-content";
const IMAGE: &str = "networks";
/// A network, its addresses and its bridge; and an internal one.
const BACK: (&str, &str, &str) = ("back", "10.79.0.0/16", "insula1");
const INNER: (&str, &str, &str) = ("inner", "172.20.0.0/16", "insula2");
/// Folder of a file that describes a network.
const FOLDER: &str = "/tmp/networks-file";
/// What a node serves on its network.
const PAGE: &str = "hello from a node";
const PORT: &str = "8090";
/// Another host, what it serves, and the base's address there.
const HOST: &str = "ip netns add world && ip link add to-world type veth peer name eth0 netns world && \
                    ip address add 192.0.2.1/24 dev to-world && ip link set to-world up && \
                    ip -n world address add 192.0.2.2/24 dev eth0 && ip -n world link set lo up && \
                    ip -n world link set eth0 up";
const NO_HOST: &str = "ip link del to-world; ip netns del world";
const HOST_PAGE: &str = "hello from outside";
/// A larger file of that host, in bytes, and how a node gets it.
const LARGE_BYTES: usize = 8 << 20;
const GET_LARGE: &str = "busybox wget -q -O - http://192.0.2.2/large | busybox wc -c";
/// Addresses of the network that lead elsewhere on the base.
const HIDDEN: &str = "10.79.40.0/24";

fn play(context: &Context) -> Result<(), Finding> {
    load_sockets()?;
    make_programs(CONTENT)?;
    fs::write(Path::new(CONTENT).join("page"), PAGE)?;
    run(HOST)?;
    let mut host = serve_outside()?;
    let played = with_cleanup(|| {
        build_image(context, IMAGE, "6.12", &["--content", CONTENT])?;
        are_created()?;
        start_nodes()?;
        reach_their_own()?;
        reach_no_other()?;
        lasts_beyond_its_supervisor()?;
        is_internal()?;
        hides_nothing_later()?;
        comes_with_a_file()?;
        has_queues_for_each_core()
    });
    host.kill()?;
    host.wait()?;
    run(NO_HOST)?;
    fs::remove_dir_all(CONTENT)?;
    played?;
    are_removed()?;
    wait_for("the host's module to be unused", || {
        Ok(modprobe(&["-r", "veth"]).ok())
    })?;
    unload(&[&NETWORK_MODULES[..], &SOCKET_MODULES].concat())
}

/// Serves a page in the other host.
fn serve_outside() -> Result<Child, Finding> {
    let folder = "/tmp/networks-host";
    fs::create_dir_all(folder)?;
    fs::write(format!("{folder}/page"), HOST_PAGE)?;
    fs::write(format!("{folder}/large"), vec![7; LARGE_BYTES])?;
    let words = [
        "netns", "exec", "world", "busybox", "httpd", "-f", "-h", folder,
    ];
    Ok(Command::new("ip")
        .args(words)
        .stdin(Stdio::null())
        .spawn()?)
}

/// Definitions change nothing of the base.
fn are_created() -> Result<(), Finding> {
    let created = insula(&["network", "create", BACK.0])?;
    assert_equal("what it prints", &created.trim_end(), &BACK.0)?;
    insula(&[
        "network",
        "create",
        INNER.0,
        "--internal",
        "--subnet",
        INNER.1,
    ])?;
    for (name, subnet, bridge) in [BACK, INNER] {
        let network = &insula_json(&["network", "inspect", name])?[0];
        let found = ["subnet", "bridge"].map(|key| text(&network[key]));
        assert_equal(name, &found, &[subnet.to_owned(), bridge.to_owned()])?;
        is_gone(bridge)?;
    }
    let listed = names(&["network", "ls", "--json"])?;
    assert_equal(
        "networks",
        &listed,
        &vec!["default".into(), BACK.0.into(), INNER.0.into()],
    )?;
    for (words, why) in [
        (&["create", BACK.0][..], "already"),
        (&["create", "default"], "already"),
        (&["create", "third", "--subnet", BACK.1], "another network"),
        (&["rm", "nothing"], "there is no network"),
        (&["rm", "default"], "cannot be removed"),
    ] {
        try_insula(&[&["network"], words].concat())?.refused(1, &[why])?;
    }
    let public = ["network", "create", "third", "--subnet", "8.8.0.0/16"];
    try_insula(&public)?.refused(2, &["private addresses"])
}

fn start_nodes() -> Result<(), Finding> {
    let node = ["run", "--image", IMAGE, "--memory", "128M"];
    for (options, why) in [
        (
            &["--network", "nothing"][..],
            "there is no network 'nothing'",
        ),
        (&["--network", BACK.0, "--ip", "10.78.0.7"], "10.79.0.2"),
        (&["--network", INNER.0, "--publish", PORT], "is internal"),
    ] {
        try_insula(&[&node, options].concat())?.refused(1, &[why, "nothing was touched"])?;
    }
    let publish = format!("{PORT}:80");
    let serves = [
        "--name",
        "a",
        "--network",
        BACK.0,
        "--publish",
        &publish,
        "--",
    ];
    let httpd = ["/bin/busybox", "httpd", "-f", "-h", "/"];
    insula(&[&node, &serves[..], &httpd].concat())?;
    insula(&[&node[..], &["--name", "b", "--network", BACK.0]].concat())?;
    insula(&[&node[..], &["--name", "c", "--network"]].concat())?;
    for (name, start) in [("a", "10.79."), ("b", "10.79."), ("c", "10.78.")] {
        let address = address(name)?;
        Finding::unless(address.starts_with(start), || {
            format!("the address of {name} is {address}")
        })?;
        // From the first command on.
        let shown = insula(&["exec", name, "--", "busybox", "ip", "-4", "address"])?;
        Finding::unless(shown.contains(&address), || format!("{name} has {shown}"))?;
    }
    let nodes = &insula_json(&["network", "inspect", BACK.0])?[0]["nodes"];
    assert_equal("nodes on it", &nodes.as_array().map(Vec::len), &Some(2))
}

fn address(node: &str) -> Result<String, Finding> {
    Ok(text(&insula_json(&["inspect", node])?[0]["address"]))
}

/// A node's answer to `wget`, if it gets one within seconds.
fn gets(node: &str, url: &str) -> Result<Option<String>, Finding> {
    let get = format!("busybox timeout 5 busybox wget -q -O - http://{url}/page");
    let (status, output) = script(node, &get)?;
    Ok((status == 0).then_some(output))
}

/// Waits until it gets this: its program, or its card, may only just come.
fn comes_to_get(node: &str, url: &str, page: &str) -> Result<(), Finding> {
    wait_for(&format!("{node} to get {url}"), || {
        Ok(gets(node, url)?.filter(|found| found == page))
    })
    .map(drop)
}

fn reach_their_own() -> Result<(), Finding> {
    comes_to_get("b", "a", PAGE)?;
    comes_to_get("b", "a.insula", PAGE)?;
    comes_to_get("b", "192.0.2.2", HOST_PAGE)?;
    let from_outside =
        format!("ip netns exec world busybox wget -q -O - http://192.0.2.1:{PORT}/page");
    assert_equal("from outside", &run(&from_outside)?.as_str(), &PAGE)?;
    let of_base = format!("busybox wget -q -O - http://127.0.0.1:{PORT}/page");
    assert_equal("on the base", &run(&of_base)?.as_str(), &PAGE)
}

fn reach_no_other() -> Result<(), Finding> {
    comes_to_get("c", "192.0.2.2", HOST_PAGE)?;
    // It can reach what everybody does.
    comes_to_get("c", &format!("10.78.0.1:{PORT}"), PAGE)?;
    let address = address("a")?;
    assert_equal("what c gets of a", &gets("c", &address)?, &None)?;
    let (_, found) = script("c", "busybox nslookup -type=a a.insula")?;
    Finding::unless(!found.contains(&address), || {
        format!("c finds a by its name: {found}")
    })
}

/// The network is there again with the next supervisor, and a published port with it.
fn lasts_beyond_its_supervisor() -> Result<(), Finding> {
    supervisor_process::kill("a")?;
    insula(&["exec", "a", "--", "busybox", "true"])?;
    comes_to_get("b", "a", PAGE)?;
    try_insula(&["network", "rm", BACK.0])?.refused(1, &["the node 'a' is on", "insula rm a"])
}

/// A node on an internal network reaches the base, and no other host.
fn is_internal() -> Result<(), Finding> {
    insula(&["rm", "--force", "c"])?;
    wait_for("the bridge of all nodes to be removed", || {
        Ok(is_gone("insula0").ok())
    })?;
    comes_to_get("b", "192.0.2.2", HOST_PAGE)?;
    let node = ["run", "--image", IMAGE, "--memory", "128M", "--name", "d"];
    insula(&[&node[..], &["--network", INNER.0]].concat())?;
    wait_for("d to reach the base", || {
        let (status, _) = script("d", "busybox ping -c 1 -w 2 172.20.0.1 >&2")?;
        Ok((status == 0).then_some(()))
    })?;
    for other in ["192.0.2.2", &address("a")?] {
        assert_equal(
            &format!("what d gets of {other}"),
            &gets("d", other)?,
            &None,
        )?;
    }
    comes_to_get("b", "192.0.2.2", HOST_PAGE)?;
    insula(&["rm", "--force", "d"]).map(drop)
}

/// A stopped node is not started where it would hide what the base has come to reach.
fn hides_nothing_later() -> Result<(), Finding> {
    insula(&["stop", "b"])?;
    run(&format!("ip route add {HIDDEN} dev to-world"))?;
    let refused = try_insula(&["start", "b"])?.refused(1, &[HIDDEN, "to-world", "insula rm b"]);
    run(&format!("ip route del {HIDDEN}"))?;
    refused?;
    let before = address("b")?;
    insula(&["start", "b"])?;
    assert_equal("its address", &address("b")?, &before)?;
    comes_to_get("b", "a", PAGE)
}

/// A file creates a network with its nodes, and removes it with them.
fn comes_with_a_file() -> Result<(), Finding> {
    insula(&["rm", "--force", "a", "b"])?;
    let file = format!("{FOLDER}/insula.toml");
    let node = format!("image = \"{IMAGE}\"\nmemory = \"128M\"\nnetwork = \"shop\"\n");
    let network = "project = \"shop\"\n[networks.shop]\ninternal = true\n";
    let serves = "program = [\"/bin/busybox\", \"httpd\", \"-f\", \"-h\", \"/\"]\n";
    let text = format!("{network}[nodes.e]\n{node}{serves}[nodes.f]\n{node}");
    fs::create_dir_all(FOLDER)?;
    fs::write(&file, text)?;
    let shown = insula(&["up", "--file", &file, "--dry-run"])?;
    let planned = shown.starts_with("network shop: to be added\n");
    Finding::unless(planned, || format!("the plan: {shown}"))?;
    insula(&["up", "--file", &file])?;
    let network = &insula_json(&["network", "inspect", "shop"])?[0];
    let found = ["project", "internal"].map(|key| network[key].to_string());
    assert_equal("the network", &found, &["\"shop\"".into(), "true".into()])?;
    comes_to_get("f", "e", PAGE)?;
    let again = insula(&["up", "--file", &file])?;
    assert_equal("the second time", &again.matches("unchanged").count(), &2)?;
    // Another file's project that is called the same has no network, also when there is no node any more.
    let other = format!("{FOLDER}/other.toml");
    fs::copy(&file, &other)?;
    insula(&["rm", "--force", "e", "f"])?;
    try_insula(&["down", "--file", &other])?.refused(1, &[&file])?;
    insula(&["down", "--file", &file])?;
    let left = names(&["network", "ls", "--json"])?;
    Finding::unless(!left.contains(&"shop".to_owned()), || "it is left".into())?;
    Ok(fs::remove_dir_all(FOLDER)?)
}

/// Bridges and tables go with the nodes, definitions by command.
fn are_removed() -> Result<(), Finding> {
    wait_for("the bridges and tables to be removed", || {
        let are_gone = ["insula0", BACK.2, INNER.2]
            .iter()
            .all(|one| is_gone(one).is_ok());
        Ok((are_gone && !run("nft list tables")?.contains("insula")).then_some(()))
    })?;
    let pruned = insula(&["network", "prune"])?;
    assert_equal("removed networks", &pruned.as_str(), &"back\ninner\n")?;
    let left = names(&["network", "ls", "--json"])?;
    assert_equal("networks that are left", &left, &vec!["default".into()])
}

fn is_gone(bridge: &str) -> Result<(), Finding> {
    Finding::unless(!Path::new("/sys/class/net").join(bridge).exists(), || {
        format!("there is a bridge {bridge}")
    })
}

/// Runs a script on the base, which must succeed.
fn run(script: &str) -> Result<String, Finding> {
    let output = Command::new("sh").args(["-c", script]).output()?;
    Finding::unless(output.status.success(), || {
        format!("`{script}`: {output:?}")
    })?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// What a program of a node with several cores receives comes to the core that it runs on, by a queue of its own: also with the
/// next supervisor. A core that goes leaves the network to the other.
fn has_queues_for_each_core() -> Result<(), Finding> {
    let name = "spread";
    let run = ["run", "--image", IMAGE, "--memory", "128M", "--cpus", "2"];
    insula(&[&run[..], &["--network", "--name", name]].concat())?;
    let id = insula_json(&["inspect", name])?[0]["id"].to_string();
    let queues = format!("/sys/class/net/insula-{id}/queues");
    let are_there = || {
        // They are once the node's driver is.
        wait_for("a queue for each core", || {
            let found = fs::read_dir(&queues).into_iter().flatten().flatten();
            let found = found.filter(|one| one.file_name().to_string_lossy().starts_with("rx-"));
            Ok((found.count() == 2).then_some(()))
        })
    };
    are_there()?;
    (0..2).try_for_each(|core| comes_to_core(name, core))?;
    supervisor_process::kill(name)?;
    insula(&["exec", name, "--", "busybox", "true"])?;
    // Its card comes by itself.
    comes_to_get(name, "192.0.2.2", HOST_PAGE)?;
    are_there()?;
    (0..2).try_for_each(|core| comes_to_core(name, core))?;
    insula(&["update", name, "--cpus", "1"])?;
    comes(name, GET_LARGE)?;
    insula(&["rm", "--force", name]).map(drop)
}

/// What a program on one of two cores asks for is received there.
fn comes_to_core(name: &str, core: usize) -> Result<(), Finding> {
    let before = receptions(name)?;
    comes(
        name,
        &format!("busybox taskset {} sh -c '{GET_LARGE}'", 1 << core),
    )?;
    let after = receptions(name)?;
    let grown = [0, 1].map(|core| after[core] - before[core]);
    Finding::unless(grown[core] > 2 * grown[1 - core], || {
        format!("core {core} asked, and the cores received {grown:?} times")
    })
}

/// The large file comes to a node.
fn comes(name: &str, get: &str) -> Result<(), Finding> {
    let (_, size) = script(name, get)?;
    assert_equal("what came", &size.trim(), &LARGE_BYTES.to_string().as_str())
}

/// How often each of two cores of a node has looked for packets.
fn receptions(name: &str) -> Result<[u64; 2], Finding> {
    let (_, table) = script(name, "busybox grep NET_RX /proc/softirqs")?;
    let mut counts = table.split_whitespace().skip(1).map(str::parse);
    let mut next = || counts.next().unwrap_or(Ok(0));
    Ok([next()?, next()?])
}
