//! Nodes that live in the base's own root: what they serve, read, send and receive, and that they
//! come back to it, again and again.

mod traffic;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::time::{Duration, Instant};

use super::in_node::{build_image, script, sum_of};
use super::insula_command::{PATIENCE, assert_equal, attended, insula, insula_json, wait_for};
use super::virtio::{NETWORK_MODULES, SOCKET_MODULES, load_sockets, unload};
use super::{Context, Finding, Module, Scenario, Shape};
use crate::kernels::Flavour;

pub(super) const SCENARIO: Scenario = Scenario {
    name: "living",
    proves: "nodes in the base's root serve, compute and restart while all their devices are at work",
    machine: Shape::USUAL,
    module: Module::Loaded,
    bases: &[Flavour::V6_12],
    limit: Duration::from_secs(600),
    soak_limit: Some(Duration::from_secs(3600)),
    play,
};

/// Files that base and nodes have in common, since the nodes' root is the base's.
const FOLDER: &str = "/var/tmp/living";
/// The web server in a node, and the node that asks it and is restarted.
const SERVER: (&str, &str) = ("6.1", "server");
const CLIENT: (&str, &str) = ("6.12", "client");
const PUBLISH: &str = "127.0.0.1:8080:80";
const NGINX: &str = "daemon off; user root; pid /run/nginx.pid; error_log stderr; events {}
http { access_log off; server { listen 80; root /var/tmp/living; } }";
/// What it serves, in bytes.
const PAGE: &str = "page";
const PAGE_BYTES: usize = 4 << 20;
/// The client's disk, and what writes to it and verifies it all the time.
const DISK: &str = "/var/tmp/living/disk.img";
const DISK_BYTES: u64 = 32 << 20;
const FIO: &str = "fio --name=disk --filename=/dev/vda --rw=randwrite --bs=16k --direct=1 \
                   --ioengine=libaio --iodepth=8 --verify=crc32c --verify_fatal=1 \
                   --time_based --runtime=100000 > /dev/null";
/// Computes and tells that it does.
const COMPUTE: &str = "n=0; while :; do n=$((n + 1)); \
                       [ $((n % 1000)) = 0 ] && echo $n > /run/rounds; done";

fn play(context: &Context) -> Result<(), Finding> {
    load_sockets()?;
    make_files()?;
    let played = attended(|| {
        start(context)?;
        serves()?;
        reads_a_tree(context.of("/usr/lib/python3", "/usr"))?;
        sends_and_receives(context.count(16 << 20, 1 << 30))?;
        for round in 0..context.count(1, 50) {
            let seconds = restarts().map_err(|error| error.when(&format!("in restart {round}")))?;
            println!("restart {round}: at work again after {seconds:.1} s");
        }
        insula(&["rm", "--force", SERVER.1, CLIENT.1]).map(drop)
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
    let work = format!("{COMPUTE} &\n{FIO} &\nexec {}\n", traffic::SERVE);
    fs::write(format!("{FOLDER}/work"), work)?;
    traffic::write_program()?;
    Ok(fs::File::create(DISK)?.set_len(DISK_BYTES)?)
}

/// What both are run with; what they change stays in their memory.
const RUN: [&str; 6] = ["run", "--memory", "384M", "--rootfs", "/", "--overlay"];

fn start(context: &Context) -> Result<(), Finding> {
    for (version, name) in [SERVER, CLIENT] {
        build_image(context, name, version, &[])?;
    }
    let configuration = format!("{FOLDER}/nginx.conf");
    let (image, own) = (["--image", SERVER.1], ["--name", SERVER.1]);
    let nginx = ["--publish", PUBLISH, "--", "nginx", "-c", &configuration];
    insula(&[&RUN[..], &image, &own, &nginx].concat())?;
    let work = format!("{FOLDER}/work");
    let (image, own) = (["--image", CLIENT.1], ["--name", CLIENT.1]);
    let shell = ["--network", "--disk", DISK, "--", "sh", &work];
    insula(&[&RUN[..], &image, &own, &shell].concat()).map(drop)
}

fn address(node: &str) -> Result<String, Finding> {
    let view = &insula_json(&["inspect", node])?[0];
    Ok(super::insula_command::text(&view["address"]))
}

/// The base and another node read what nginx in a node serves.
fn serves() -> Result<(), Finding> {
    let file = format!("{FOLDER}/{PAGE}");
    let page = fs::read(&file)?;
    wait_for("nginx in the node to answer the base", || {
        // Before it listens, whoever connects is sent away.
        Ok(get().ok().filter(|answer| answer.ends_with(&page)))
    })?;
    let get = format!(
        "python3 -c 'import sys, urllib.request as u; \
         sys.stdout.buffer.write(u.urlopen(\"http://{}/{PAGE}\").read())' | sha256sum",
        address(SERVER.1)?
    );
    let (_, told) = script(CLIENT.1, &get)?;
    assert_equal("what another node reads", &told, &sum_of(&file)?)
}

fn get() -> std::io::Result<Vec<u8>> {
    let mut answer = Vec::new();
    let mut stream = TcpStream::connect("127.0.0.1:8080")?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(format!("GET /{PAGE} HTTP/1.0\r\n\r\n").as_bytes())?;
    stream.read_to_end(&mut answer)?;
    Ok(answer)
}

/// All files below a folder, with their names, owners, modes and times, are in the node what they are
/// in the base.
fn reads_a_tree(folder: &str) -> Result<(), Finding> {
    let sum = format!("tar -C {folder} --sort=name -cf - . | sha256sum");
    let (status, told) = script(CLIENT.1, &sum)?;
    assert_equal("the status of reading a tree", &status, &0)?;
    let own = Command::new("sh").args(["-c", &sum]).output()?;
    let own = String::from_utf8_lossy(&own.stdout).into_owned();
    assert_equal("a tree as the node reads it", &told, &own)
}

/// So many bytes each way arrive as they were, and the node's own work goes on meanwhile.
fn sends_and_receives(bytes: u64) -> Result<(), Finding> {
    let before = rounds()?;
    let seconds = traffic::both_ways(&address(CLIENT.1)?, bytes)?;
    println!("{bytes} bytes each way in {seconds:.1} s");
    let after = rounds()?;
    Finding::unless(after > before, || {
        format!("its own work stayed at {before} rounds")
    })
}

fn rounds() -> Result<u64, Finding> {
    wait_for("the node to tell of its work", || {
        let (_, told) = script(CLIENT.1, "cat /run/rounds 2> /dev/null")?;
        Ok(told.trim().parse::<u64>().ok())
    })
}

/// The node is restarted while it writes, sends, receives and reads; then all of it goes on. Answers
/// after how many seconds.
fn restarts() -> Result<f64, Finding> {
    let mut endless = traffic::begin_endless(&address(CLIENT.1)?)?;
    wait_until_more_is_written()?;
    let began = Instant::now();
    insula(&["restart", CLIENT.1])?;
    let ended = endless.wait()?;
    Finding::unless(!ended.success(), || {
        "what was sent to a node that was restarted has arrived".into()
    })?;
    wait_for("the node to answer", || {
        Ok((script(CLIENT.1, "true")?.0 == 0).then_some(()))
    })?;
    sends_and_receives(1 << 20)?;
    Ok(began.elapsed().as_secs_f64())
}

/// The disk's file was without any blocks once, and is written to all over; after that its time
/// tells.
fn wait_until_more_is_written() -> Result<(), Finding> {
    let written = || -> Result<_, Finding> {
        let metadata = fs::metadata(DISK)?;
        Ok((metadata.mtime(), metadata.mtime_nsec()))
    };
    let before = written()?;
    wait_for("the node to write to its disk", || {
        Ok((written()? > before).then_some(()))
    })
}
