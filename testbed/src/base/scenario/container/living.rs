//! Nodes with the base's root: they serve, read, send and receive, and are restarted again and
//! again.

mod traffic;

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::base::support::insula_command::{
    TIMEOUT, assert_equal, insula, insula_json, text, wait_for, with_cleanup,
};
use crate::base::support::nodes::in_node::{build_image, script, sum_of};
use crate::base::support::virtio_modules::{NETWORK_MODULES, SOCKET_MODULES, load_sockets, unload};
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "living",
    proves: "nodes in the base's root serve, compute and restart while all their devices are at work",
    machine: Shape::USUAL,
    module: Module::Loaded,
    bases: &[Flavour::V6_12],
    limit: Duration::from_secs(600),
    soak_limit: Some(Duration::from_secs(7200)),
    play,
};

/// Folder that base and nodes share, since the nodes' root is the base's.
const FOLDER: &str = "/var/tmp/living";
/// A node of each kernel: a web server, and its client. The client, and in a long run both,
/// compute, write to their disk and answer on the network all the time.
const NODES: [(&str, &str); 2] = [("6.12", CLIENT), ("6.1", SERVER)];
const CLIENT: &str = "client";
const SERVER: &str = "server";
/// Ports of the base that lead to nginx, and to a program that sends datagrams back.
const PUBLISH: [&str; 3] = [
    "--publish=127.0.0.1:8080:80",
    "--publish=[::1]:8080:80",
    "--publish=127.0.0.1:8053:53/udp",
];
const NGINX_AT: [&str; 2] = ["127.0.0.1:8080", "[::1]:8080"];
const ECHO_AT: &str = "127.0.0.1:8053";
const ECHO: &str = "import socket
port = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
port.bind((\"\", 53))
while True:
    port.sendto(*port.recvfrom(65536))
";
const NGINX: &str = "user root; pid /run/nginx.pid; error_log stderr; events {}
http { access_log off; server { listen 80; root /var/tmp/living; } }";
/// Served file and its size in bytes.
const PAGE: &str = "page";
const PAGE_BYTES: usize = 4 << 20;
/// Size of a node's disk, and the program that writes to it and verifies what it has written.
const DISK_BYTES: u64 = 32 << 20;
const FIO: &str = "fio --name=disk --filename=/dev/vda --rw=randwrite --bs=16k --direct=1 \
                   --ioengine=libaio --iodepth=8 --verify=crc32c --verify_fatal=1";
/// With pauses, as below.
const ENDLESSLY: &str = "--time_based --runtime=100000 --thinktime=10ms > /dev/null";
/// Option: write and verify once.
const ONCE: &str = "--size=4m";
/// Computes, and counts its rounds in a file. It pauses, so that an emulator can run the machine's other
/// cores.
const COMPUTE: &str = "n=0; while :; do n=$((n + 1)); \
                       [ $((n % 1000)) = 0 ] && echo $n > /run/rounds && sleep 0.05; done";

fn play(context: &Context) -> Result<(), Finding> {
    load_sockets()?;
    make_files()?;
    let played = with_cleanup(|| {
        let busy = context.select(&[CLIENT][..], &[CLIENT, SERVER]);
        for (version, node) in NODES {
            start(context, version, node, busy.contains(&node))?;
        }
        serves()?;
        if !busy.contains(&SERVER) {
            assert_equal("fio", &script(SERVER, &format!("{FIO} {ONCE}"))?.0, &0)?;
        }
        for node in busy {
            reads_a_tree(node, context.select("/usr/lib/python3", "/usr"))?;
            sends_and_receives(node, context.count(16 << 20, 1 << 30))?;
        }
        for (round, node) in (0..context.count(1, 50)).zip(busy.iter().cycle()) {
            let when = |error: Finding| error.when(&format!("in restart {round}, of {node}"));
            let seconds = restarts(node).map_err(when)?;
            println!("restart {round}, of {node}: working again after {seconds:.1} s");
        }
        insula(&["rm", "--force", SERVER, CLIENT]).map(drop)
    });
    fs::remove_dir_all(FOLDER)?;
    played?;
    unload(&[&NETWORK_MODULES[..], &SOCKET_MODULES].concat())
}

fn make_files() -> Result<(), Finding> {
    fs::create_dir_all(FOLDER)?;
    let mut random = fastrand::Rng::new();
    let bytes: Vec<u8> = std::iter::repeat_with(|| random.u8(..))
        .take(PAGE_BYTES)
        .collect();
    fs::write(format!("{FOLDER}/{PAGE}"), bytes)?;
    fs::write(format!("{FOLDER}/nginx.conf"), NGINX)?;
    traffic::write_program()
}

/// Runs a node with the base's root; its changes there stay in its memory.
fn start(context: &Context, version: &str, node: &str, is_busy: bool) -> Result<(), Finding> {
    build_image(context, node, version, &[])?;
    let disk = disk_of(node);
    fs::File::create(&disk)?.set_len(DISK_BYTES)?;
    let work = format!("{FOLDER}/{node}.work");
    fs::write(&work, work_of(node, is_busy))?;
    let run = ["run", "--image", node, "--name", node, "--memory", "384M"];
    let devices = ["--rootfs", "/", "--overlay", "--network", "--disk", &disk];
    let publish = match node {
        SERVER => &PUBLISH[..],
        _ => &[],
    };
    insula(&[&run[..], &devices, publish, &["--", "sh", &work]].concat()).map(drop)
}

/// Script of the node's work.
fn work_of(node: &str, is_busy: bool) -> String {
    let mut work = String::new();
    if node == SERVER {
        work.push_str(&format!(
            "nginx -c {FOLDER}/nginx.conf\npython3 -c '{ECHO}' &\n"
        ));
    }
    if is_busy {
        work.push_str(&format!("{COMPUTE} &\n{FIO} {ENDLESSLY} &\n"));
    }
    format!("{work}exec {}\n", traffic::SERVE)
}

fn disk_of(node: &str) -> String {
    format!("{FOLDER}/{node}.img")
}

fn address(node: &str) -> Result<String, Finding> {
    let view = &insula_json(&["inspect", node])?[0];
    Ok(text(&view["address"]))
}

/// The base and another node read what nginx in a node serves.
fn serves() -> Result<(), Finding> {
    let file = format!("{FOLDER}/{PAGE}");
    let page = fs::read(&file)?;
    for address in NGINX_AT {
        wait_for(&format!("nginx in the node to answer at {address}"), || {
            // Connections are refused before it listens.
            Ok(get(address).ok().filter(|answer| answer.ends_with(&page)))
        })?;
    }
    sends_datagrams_back()?;
    let get = format!(
        "python3 -c 'import sys, urllib.request as u; \
         sys.stdout.buffer.write(u.urlopen(\"http://{}/{PAGE}\").read())' | sha256sum",
        address(SERVER)?
    );
    let (_, output) = script(CLIENT, &get)?;
    assert_equal("page read by another node", &output, &sum_of(&file)?)
}

fn get(address: &str) -> std::io::Result<Vec<u8>> {
    let mut answer = Vec::new();
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(format!("GET /{PAGE} HTTP/1.0\r\n\r\n").as_bytes())?;
    stream.read_to_end(&mut answer)?;
    Ok(answer)
}

/// Datagrams come back from the node, also one that does not fit into a packet.
fn sends_datagrams_back() -> Result<(), Finding> {
    let client = UdpSocket::bind("127.0.0.1:0")?;
    client.connect(ECHO_AT)?;
    client.set_read_timeout(Some(Duration::from_secs(1)))?;
    let mut answer = vec![0; 65_536];
    wait_for("the node to send a datagram back", || {
        // Those are lost that come before it has opened its port.
        client.send(b"there")?;
        Ok(client.recv(&mut answer).ok())
    })?;
    let sent: Vec<u8> = (0..30_000).map(|number| (number >> 4) as u8).collect();
    wait_for("the node to send a long one back", || {
        client.send(&sent)?;
        let length = client.recv(&mut answer).unwrap_or(0);
        Ok((answer[..length] == sent).then_some(()))
    })
}

/// All files below a folder have the same names, owners, modes and times in the node as in the
/// base.
fn reads_a_tree(node: &str, folder: &str) -> Result<(), Finding> {
    let sum = format!("tar -C {folder} --sort=name -cf - . | sha256sum");
    let (status, output) = script(node, &sum)?;
    assert_equal("the status of reading a tree", &status, &0)?;
    let own = Command::new("sh").args(["-c", &sum]).output()?;
    let own = String::from_utf8_lossy(&own.stdout).into_owned();
    assert_equal("a tree as the node reads it", &output, &own)
}

/// Both ways that many bytes arrive unchanged, and the node's own work goes on meanwhile.
fn sends_and_receives(node: &str, bytes: u64) -> Result<(), Finding> {
    let before = rounds(node)?;
    let seconds = traffic::both_ways(&address(node)?, bytes)?;
    println!("{bytes} bytes to {node} and back in {seconds:.1} s");
    let after = rounds(node)?;
    Finding::unless(after > before, || {
        format!("its own work stayed at {before} rounds")
    })
}

fn rounds(node: &str) -> Result<u64, Finding> {
    wait_for("the node to report its work", || {
        let (_, output) = script(node, "cat /run/rounds 2> /dev/null")?;
        Ok(output.trim().parse::<u64>().ok())
    })
}

/// The node is restarted while it writes, sends, receives and reads; then all of it goes on.
/// Returns the number of seconds that took.
fn restarts(node: &str) -> Result<f64, Finding> {
    let mut endless = traffic::begin_endless(&address(node)?)?;
    wait_until_more_is_written(node)?;
    let began = Instant::now();
    insula(&["restart", node])?;
    let ended = endless.wait()?;
    Finding::unless(!ended.success(), || {
        "what was sent to a node that was restarted has arrived".into()
    })?;
    wait_for("the node to answer", || {
        Ok((script(node, "true")?.0 == 0).then_some(()))
    })?;
    sends_and_receives(node, 1 << 20)?;
    let seconds = began.elapsed().as_secs_f64();
    if node == SERVER {
        serves()?;
    }
    Ok(seconds)
}

/// The disk's file was sparse at first, and is written to all over; from then on its modification
/// time shows writes.
fn wait_until_more_is_written(node: &str) -> Result<(), Finding> {
    let written = || -> Result<_, Finding> {
        let metadata = fs::metadata(disk_of(node))?;
        Ok((metadata.mtime(), metadata.mtime_nsec()))
    };
    let before = written()?;
    wait_for("the node to write to its disk", || {
        Ok((written()? > before).then_some(()))
    })
}
