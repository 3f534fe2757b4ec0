//! Containers of podman, by crun and on kernels of their own.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::symlink;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use testbed::base::{Finding, Shape};
use testbed::host::root::Root;

use super::{Benchmark, Row, Unit};
use crate::inside::{BUSYBOX, COMMAND, CONTAINER, FOLDER, Inside, podman, run};

/// The image that containers have if nothing else is said, and its kernel.
const IMAGE: &str = "container";
const KERNEL: &str = "6.12";
/// The runtime, and what serves a container's files, where the process that stands for it finds it.
const RUNTIME: &str = "/usr/local/sbin/insula-oci";
const VIRTIOFSD: (&str, &str) = ("/payload/bin/virtiofsd", "/usr/local/sbin/virtiofsd");
/// What is compared, with podman's option for the runtime and the containers' size.
const RUNTIMES: [(&str, &[&str]); 2] = [
    ("crun", &["--runtime=crun"]),
    ("insula", &["--runtime=/usr/local/sbin/insula-oci"]),
];
const SIZE: [&str; 2] = ["--memory", "128m"];
/// Port of the base that leads to a container's web server.
const PORT: u16 = 8080;
/// Time limit for an answer, and the interval of attempts.
const TIMEOUT: Duration = Duration::from_secs(60);
const INTERVAL: Duration = Duration::from_millis(3);
/// Containers whose memory is measured together.
const MANY: usize = 2;

pub(super) const BENCHMARK: Benchmark = Benchmark {
    name: "oci",
    title: "Containers of podman on kernels of their own",
    how: "The same `podman run`, with crun, its usual runtime, and with `insula-oci`: there each container is started on a \
          Linux node of one core and 128 MiB, from a resident image, and its root is the folder by virtiofs. *true*: from \
          Enter until podman has removed the container. *First answer*: from Enter until a port that podman publishes \
          (`-p`, netavark) answers an HTTP request. *Memory*: what the base has less available (`MemAvailable`) for each \
          of two idle containers: with its 128 MiB a node has that of its own kernel, and the base that of its devices' \
          processes.",
    machine: Shape::USUAL,
    root: Root::Bench,
    rounds: 2,
    inside,
    outside: None,
    counted: None,
    series: &[],
    rows: &[
        Row::time(
            "oci.true.crun",
            "true, by crun",
            "podman run --rm --network none --rootfs FOLDER busybox true",
        )
        .drawn(),
        Row::time(
            "oci.true.insula",
            "true, by insula-oci",
            "podman --runtime insula-oci run …",
        )
        .beside("oci.true.crun")
        .drawn(),
        Row::time(
            "oci.answer.crun",
            "first answer, by crun",
            "podman run --rm -p 8080:80 --rootfs FOLDER busybox httpd -f -p 80",
        )
        .drawn(),
        Row::time("oci.answer.insula", "first answer, by insula-oci", "")
            .beside("oci.answer.crun")
            .drawn(),
        Row::time("oci.memory.crun", "memory, by crun", "").unit(Unit::Kibibytes),
        Row::time("oci.memory.insula", "memory, by insula-oci", "").unit(Unit::Kibibytes),
    ],
};

fn inside(inside: &Inside) -> Result<(), Finding> {
    inside.build_image(IMAGE, KERNEL)?;
    symlink(COMMAND, RUNTIME)?;
    symlink(VIRTIOFSD.0, VIRTIOFSD.1)?;
    for _ in 0..inside.count {
        for (name, runtime) in RUNTIMES {
            let took = run(&mut podman_with(runtime, &["run", "--rm"], &["true"]))?;
            inside.record(&format!("oci.true.{name}"), took)?;
            inside.record(&format!("oci.answer.{name}"), first_answer(runtime)?)?;
            inside.record(&format!("oci.memory.{name}"), memory_kib(runtime)?)?;
        }
    }
    fs::remove_file(RUNTIME)?;
    Ok(fs::remove_file(VIRTIOFSD.1)?)
}

/// `podman` with a runtime: it runs a program of busybox without a network.
fn podman_with(runtime: &[&str], run: &[&str], program: &[&str]) -> std::process::Command {
    podman(&[runtime, run, &SIZE, &CONTAINER, &[BUSYBOX], program].concat())
}

/// Time from Enter until a web server answers.
fn first_answer(runtime: &[&str]) -> Result<Duration, Finding> {
    let publish = ["run", "--rm", "-p", "8080:80"];
    let program = ["--rootfs", FOLDER, BUSYBOX, "httpd", "-f", "-p", "80"];
    let enter = Instant::now();
    let mut container = podman(&[runtime, &publish, &SIZE, &program].concat());
    let mut container = container.stdin(Stdio::null()).spawn()?;
    while !answers() {
        Finding::unless(enter.elapsed() < TIMEOUT, || "no answer".into())?;
        thread::sleep(INTERVAL);
    }
    let took = enter.elapsed();
    run(&mut podman(
        &[runtime, &["stop", "--all", "-t", "0"]].concat(),
    ))?;
    container.wait()?;
    Ok(took)
}

/// Whether a web server answers, whatever it says: it has no page.
fn answers() -> bool {
    let ask = || {
        let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, PORT))?;
        server.set_read_timeout(Some(Duration::from_secs(1)))?;
        server.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
        let mut first = [0; 5];
        server.read_exact(&mut first)?;
        Ok::<_, std::io::Error>(first)
    };
    ask().is_ok_and(|first| first == *b"HTTP/")
}

/// Memory that each of several idle containers takes.
fn memory_kib(runtime: &[&str]) -> Result<f64, Finding> {
    let before = available_kib()?;
    let mut containers = Vec::new();
    for index in 0..MANY {
        let name = format!("idle-{index}");
        let run = ["run", "--rm", "--name", &name];
        containers.push(idle(runtime, &run)?);
    }
    let used = before - available_kib()?;
    run(&mut podman(
        &[runtime, &["stop", "--all", "-t", "0"]].concat(),
    ))?;
    for mut container in containers {
        container.wait()?;
    }
    Ok(used / MANY as f64)
}

/// Starts a container, and waits until its program runs.
fn idle(runtime: &[&str], run: &[&str]) -> Result<Child, Finding> {
    let program = ["sh", "-c", "echo ready; exec sleep 100000"];
    let mut container = podman_with(runtime, run, &program);
    let mut container = container
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut said = [0; 5];
    let output = container.stdout.as_mut();
    output.map_or(Ok(()), |output| output.read_exact(&mut said))?;
    Ok(container)
}

fn available_kib() -> Result<f64, Finding> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    kib.ok_or_else(|| Finding::new("the kernel does not say what is available"))
}
