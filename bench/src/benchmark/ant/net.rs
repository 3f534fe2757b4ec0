//! A web server by the network server, and by others' networks.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use testbed::base::{Finding, Shape};
use testbed::host::machine::SpareDevices;
use testbed::host::root::Root;

use crate::benchmark::{Benchmark, Row, Unit};
use crate::inside::{
    Inside, LwkNode, NAMESPACE_ADDRESS, NODE, PROBE, Place, in_namespace, make_namespace,
    output_of, program, run, run_lines,
};

/// Core of the clients, and of the servers on the base. The lightweight kernel has the next two, the Linux node the last.
const CLIENT: usize = 0;
const ON_BASE: &str = "1";
const LWK_CORES: &str = "2-3";
const LINUX_CORE: &str = "4";
/// The Linux node: its kernel, its image, and itself.
const KERNEL: &str = "6.12";
const LINUX: &str = "linux";
/// Two cards that are wired to each other: the node's, and the base's, with their addresses.
const NODE_CARD: &str = "0000:05:00.0";
const BASE_CARD: &str = "0000:06:00.0";
const SERVED: &str = "10.9.0.2";
const BASE: &str = "10.9.0.1";
const LOCAL: &str = "127.0.0.1";
/// Connections at once.
const CONNECTIONS: &str = "8";
const FOLDER: &str = "/var/tmp/nginx";
const NGINX: &str =
    "user root; daemon off; master_process off; pid /var/tmp/nginx/pid; error_log stderr;
events {}
http { access_log off; keepalive_requests 100000; server { listen 7380; root /var/tmp/nginx; } }
";
const PORT: u16 = 7380;
/// Size of the page that it serves, in bytes.
const PAGE_BYTES: usize = 4096;
/// Time limit for a server to start, or to end.
const TIMEOUT: Duration = Duration::from_secs(60);

pub(in super::super) const BENCHMARK: Benchmark = Benchmark {
    name: "ant-net",
    title: "A web server by the network server of its node",
    how: "Debian's nginx, unmodified, one process, and a client on a core of the base that asks it for a page of 4 KiB: the median of 500 \
          requests on one connection, and the time for each of 500 by eight connections at once. nginx is in a network \
          namespace of the base behind a veth pair; on a node of the lightweight kernel by calls to the base, \
          over loopback (*delegated*); on a Linux node of one core, by insula's virtio-net and the base's bridge; on the node of \
          the lightweight kernel with the sockets of a network server (*N*), which drives a virtio card whose cable \
          leads to another one of the base: on the core of nginx (`A N`), or on one of its own (`A | N`). Those two cards \
          are QEMU's, between which each frame goes through a thread of its own: what that takes is in these rows, \
          and in no other.",
    machine: Shape {
        cpus: 5,
        spare_devices: SpareDevices::Plain,
        ..Shape::USUAL
    },
    root: Root::Test,
    rounds: 2,
    inside,
    outside: None,
    counted: None,
    series: &[],
    rows: &[
        time("ant-net.1.veth", "1 connection, veth pair").drawn(),
        time("ant-net.1.linux-node", "1 connection, Linux node")
            .beside("ant-net.1.veth")
            .drawn(),
        time("ant-net.1.delegated", "1 connection, delegated")
            .beside("ant-net.1.veth")
            .drawn(),
        time("ant-net.1.an", "1 connection, A N on one core")
            .beside("ant-net.1.linux-node")
            .drawn(),
        time("ant-net.1.a-n", "1 connection, A | N")
            .beside("ant-net.1.an")
            .drawn(),
        time("ant-net.8.veth", "8 connections, veth pair").drawn(),
        time("ant-net.8.linux-node", "8 connections, Linux node")
            .beside("ant-net.8.veth")
            .drawn(),
        time("ant-net.8.delegated", "8 connections, delegated")
            .beside("ant-net.8.veth")
            .drawn(),
        time("ant-net.8.an", "8 connections, A N on one core")
            .beside("ant-net.8.linux-node")
            .drawn(),
        time("ant-net.8.a-n", "8 connections, A | N")
            .beside("ant-net.8.an")
            .drawn(),
    ],
};

const fn time(id: &'static str, what: &'static str) -> Row {
    Row::time(id, what, "").unit(Unit::Microseconds)
}

fn inside(inside: &Inside) -> Result<(), Finding> {
    fs::create_dir_all(FOLDER)?;
    fs::write(format!("{FOLDER}/conf"), NGINX)?;
    fs::write(format!("{FOLDER}/index.html"), [b'x'; PAGE_BYTES])?;
    make_namespace()?;
    let interface = base_card()?;
    let lwk_node = start_nodes(inside)?;
    for _ in 0..inside.count {
        measure_all(inside, &lwk_node)?;
    }
    inside.command.run(&["servers", "stop", NODE, "net"])?;
    lwk_node.remove()?;
    inside.command.run(&["rm", "--force", LINUX])?;
    run_lines(&[&format!("ip link set {interface} down")])
}

/// Has the base's card have its address. Returns its interface.
fn base_card() -> Result<String, Finding> {
    run(Command::new("modprobe").arg("virtio_net"))?;
    let find = format!("ls /sys/bus/pci/devices/{BASE_CARD}/virtio*/net");
    let interface = output_of(Command::new("sh").args(["-c", &find]))?;
    let interface = interface.trim().to_owned();
    run_lines(&[
        &format!("ip address add {BASE}/24 dev {interface}"),
        &format!("ip link set {interface} up"),
    ])?;
    Ok(interface)
}

fn start_nodes(inside: &Inside) -> Result<LwkNode<'_>, Finding> {
    inside.build_image(KERNEL, KERNEL)?;
    let size = ["--cpu-list", LINUX_CORE, "--memory", "512M", "--network"];
    let root = ["--rootfs", "/", "--overlay", "--name", LINUX];
    let words = [&["run", "--image", KERNEL], &size[..], &root].concat();
    inside.command.run(&words)?;
    let lwk_node = LwkNode::start_with(inside, LWK_CORES, &["--device", NODE_CARD])?;
    let device = format!("virtio:{NODE_CARD}");
    let address = format!("{SERVED}/24");
    let server = [
        "/payload/bin/insula-network",
        "--device",
        &device,
        "--address",
        &address,
    ];
    let words = [&["servers", "start", NODE, "net", "--"], &server[..]].concat();
    inside.command.run(&words)?;
    Ok(lwk_node)
}

fn measure_all(inside: &Inside, lwk_node: &LwkNode<'_>) -> Result<(), Finding> {
    let mut veth = in_namespace();
    veth.args(["taskset", "-c", ON_BASE]);
    measure(inside, lwk_node, "veth", (veth, NAMESPACE_ADDRESS))?;
    let mut node = inside.command.prepare();
    node.args(["exec", LINUX, "--"]);
    measure(
        inside,
        lwk_node,
        "linux-node",
        (node, &inside.address_of(LINUX)?),
    )?;
    let delegated = program(inside, Place::Lwk, &[]);
    measure(inside, lwk_node, "delegated", (delegated, LOCAL))?;
    for (row, core) in [("an", "0"), ("a-n", "1")] {
        inside
            .command
            .run(&["servers", "move", NODE, "net", core])?;
        let mut served = inside.command.prepare();
        served.args(["exec", "--net", "net", NODE, "--", "taskset", "-c", "0"]);
        measure(inside, lwk_node, row, (served, SERVED))?;
    }
    Ok(())
}

/// Runs nginx by a command, and measures it at an address.
fn measure(
    inside: &Inside,
    lwk_node: &LwkNode<'_>,
    row: &str,
    (mut command, address): (Command, &str),
) -> Result<(), Finding> {
    let server = format!("{address}:{PORT}");
    let nginx = ["/usr/sbin/nginx", "-c", "/var/tmp/nginx/conf"];
    let mut running = command.args(nginx).stdin(Stdio::null()).spawn()?;
    let measured = wait_for_answer(&server).and_then(|()| {
        for (connections, words) in [
            ("1", &["get", &server][..]),
            ("8", &["get", &server, CONNECTIONS]),
        ] {
            let round = lwk_node.round(Place::Base(CLIENT), words)?;
            inside.record(&format!("ant-net.{connections}.{row}"), round.median_us)?;
        }
        Ok(())
    });
    end(&mut running)?;
    measured
}

fn wait_for_answer(server: &str) -> Result<(), Finding> {
    let began = Instant::now();
    while !Command::new(PROBE)
        .args(["get", server, "1"])
        .output()?
        .status
        .success()
    {
        Finding::unless(began.elapsed() < TIMEOUT, || {
            format!("{server} does not answer")
        })?;
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Ends a server by SIGTERM, which `insula exec` passes on.
fn end(running: &mut Child) -> Result<(), Finding> {
    run(Command::new("kill").arg(running.id().to_string()))?;
    let began = Instant::now();
    while running.try_wait()?.is_none() {
        Finding::unless(began.elapsed() < TIMEOUT, || "nginx does not end".into())?;
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
