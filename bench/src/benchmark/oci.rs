//! Containers of podman, by crun and on kernels of their own.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::symlink;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use testbed::base::{Finding, Shape};
use testbed::host::machine::Emulator;
use testbed::host::root::Root;

use super::{Benchmark, Row, Unit};
use crate::inside::{BUSYBOX, COMMAND, CONTAINER, FOLDER, Inside, podman, run};

/// The image that containers have if nothing else is said, and its kernel.
const IMAGE: &str = "container";
const KERNEL: &str = "6.12";
/// The runtime, and what serves a container's files, where the process that stands for it finds it.
const RUNTIME: &str = "/usr/local/sbin/insula-oci";
const VIRTIOFSD: (&str, &str) = ("/payload/bin/virtiofsd", "/usr/local/sbin/virtiofsd");
const RUNTIME_OPTION: &str = "--runtime=/usr/local/sbin/insula-oci";
/// What is compared, with podman's option for the runtime, and of `podman run` for the container's kernel.
const RUNTIMES: [(&str, &str, &[&str]); 4] = [
    ("crun", "--runtime=crun", &[]),
    ("insula", RUNTIME_OPTION, &[]),
    (
        "copy",
        RUNTIME_OPTION,
        &["--annotation", "run.insula.image=ready"],
    ),
    (
        "lwk",
        RUNTIME_OPTION,
        &["--annotation", "run.insula.image=lwk"],
    ),
];
/// The node of whose snapshot there are copies, and the folder that it has as root and does not mount.
const ORIGINAL: &str = "original";
const SNAPSHOT: &str = "ready";
const EMPTY: &str = "/run/oci-empty";
const SIZE: [&str; 2] = ["--memory", "128m"];
/// Port of the base that leads to a container's web server.
const PORT: u16 = 8080;
/// Time limit for an answer, and the interval of attempts.
const TIMEOUT: Duration = Duration::from_secs(60);
const INTERVAL: Duration = Duration::from_millis(3);
/// Numbers of containers whose memory is measured together.
const MANY: [usize; 4] = [1, 2, 4, 8];

pub(super) const BENCHMARK: Benchmark = Benchmark {
    name: "oci",
    title: "Containers of podman on kernels of their own",
    how: "The same `podman run`, with crun, its usual runtime, and with `insula-oci`: there each container is started on a \
          Linux node of one core and 128 MiB, from a resident image, and its root is the folder by virtiofs; or on a copy of such a \
          node, confined, that has booted before (*copy*); or on a node of the \
          lightweight kernel of that size (*lwk*), whose calls go to a process that crun has made. *true*: from \
          Enter until podman has removed the container. *First answer*: from Enter until a port that podman publishes \
          (`-p`, netavark) answers an HTTP request. *Memory*: what the base has less available (`MemAvailable`) for each \
          of so many idle containers: with its 128 MiB a node has that of its own kernel, and the base that of its devices' \
          processes.",
    machine: Shape {
        // A core for each of eight containers.
        cpus: 10,
        emulator: Emulator::Backports,
        ..Shape::USUAL
    },
    root: Root::Bench,
    rounds: 1,
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
            "oci.true.copy",
            "true, by insula-oci on a copy",
            "podman --runtime insula-oci run --annotation run.insula.image=ready …",
        )
        .beside("oci.true.crun")
        .drawn(),
        Row::time(
            "oci.true.lwk",
            "true, by insula-oci on lwk",
            "podman --runtime insula-oci run --annotation run.insula.image=lwk …",
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
        Row::time(
            "oci.answer.copy",
            "first answer, by insula-oci on a copy",
            "",
        )
        .beside("oci.answer.crun")
        .drawn(),
        Row::time("oci.answer.lwk", "first answer, by insula-oci on lwk", "")
            .beside("oci.answer.crun")
            .drawn(),
        memory("oci.memory.crun.1", "memory, 1 by crun"),
        memory("oci.memory.crun.2", "memory, each of 2"),
        memory("oci.memory.crun.4", "memory, each of 4"),
        memory("oci.memory.crun.8", "memory, each of 8"),
        memory("oci.memory.insula.1", "memory, 1 by insula-oci"),
        memory("oci.memory.insula.2", "memory, each of 2"),
        memory("oci.memory.insula.4", "memory, each of 4"),
        memory("oci.memory.insula.8", "memory, each of 8"),
        memory("oci.memory.copy.1", "memory, 1 by insula-oci on a copy"),
        memory("oci.memory.copy.2", "memory, each of 2"),
        memory("oci.memory.copy.4", "memory, each of 4"),
        memory("oci.memory.copy.8", "memory, each of 8"),
        memory("oci.memory.lwk.1", "memory, 1 by insula-oci on lwk"),
        memory("oci.memory.lwk.2", "memory, each of 2"),
        memory("oci.memory.lwk.4", "memory, each of 4"),
        memory("oci.memory.lwk.8", "memory, each of 8"),
    ],
};

const fn memory(id: &'static str, what: &'static str) -> Row {
    Row::time(id, what, "").unit(Unit::Kibibytes)
}

fn inside(inside: &Inside) -> Result<(), Finding> {
    inside.build_image(IMAGE, KERNEL)?;
    symlink(COMMAND, RUNTIME)?;
    symlink(VIRTIOFSD.0, VIRTIOFSD.1)?;
    take_snapshot(inside)?;
    for _ in 0..inside.count {
        for (name, runtime, kernel) in RUNTIMES {
            let takes = Runtime { runtime, kernel };
            let took = run(&mut takes.podman(&["--rm"], &["true"]))?;
            inside.record(&format!("oci.true.{name}"), took)?;
            inside.record(&format!("oci.answer.{name}"), takes.first_answer()?)?;
            for count in MANY {
                let used = takes.memory_kib(count)?;
                inside.record(&format!("oci.memory.{name}.{count}"), used)?;
            }
        }
    }
    inside.command.run(&["image", "rm", SNAPSHOT])?;
    fs::remove_file(RUNTIME)?;
    Ok(fs::remove_file(VIRTIOFSD.1)?)
}

/// Takes a snapshot of a node of which each copy has another root.
fn take_snapshot(inside: &Inside) -> Result<(), Finding> {
    fs::create_dir(EMPTY)?;
    let size = ["--cpus", "1", "--memory", "128M", "--isolation", "vmm"];
    let root = ["--network", "--rootfs", EMPTY, "--unmounted-root"];
    let words = [
        &["run", "--image", IMAGE, "--name", ORIGINAL],
        &size[..],
        &root,
    ]
    .concat();
    inside.command.run(&words)?;
    inside.command.run(&["snapshot", ORIGINAL, SNAPSHOT])?;
    inside.command.run(&["rm", "--force", ORIGINAL]).map(drop)
}

/// How podman runs containers.
struct Runtime {
    runtime: &'static str,
    kernel: &'static [&'static str],
}

impl Runtime {
    /// `podman run` of a program of busybox without a network.
    fn podman(&self, options: &[&str], program: &[&str]) -> std::process::Command {
        let run = [&[self.runtime, "run"], options, self.kernel, &SIZE].concat();
        podman(&[&run[..], &CONTAINER, &[BUSYBOX], program].concat())
    }

    fn stop_all(&self) -> Result<(), Finding> {
        run(&mut podman(&[self.runtime, "stop", "--all", "-t", "0"])).map(drop)
    }

    /// Time from Enter until a web server answers.
    fn first_answer(&self) -> Result<Duration, Finding> {
        let publish = [self.runtime, "run", "--rm", "-p", "8080:80"];
        let program = ["--rootfs", FOLDER, BUSYBOX, "httpd", "-f", "-p", "80"];
        let enter = Instant::now();
        let mut container = podman(&[&publish[..], self.kernel, &SIZE, &program].concat());
        let mut container = container.stdin(Stdio::null()).spawn()?;
        while !answers() {
            Finding::unless(enter.elapsed() < TIMEOUT, || "no answer".into())?;
            thread::sleep(INTERVAL);
        }
        let took = enter.elapsed();
        self.stop_all()?;
        container.wait()?;
        Ok(took)
    }

    /// Memory that each of several idle containers takes.
    fn memory_kib(&self, count: usize) -> Result<f64, Finding> {
        let before = available_kib()?;
        let mut containers = Vec::new();
        for index in 0..count {
            containers.push(self.idle(&format!("idle-{index}"))?);
        }
        let used = before - available_kib()?;
        self.stop_all()?;
        for mut container in containers {
            container.wait()?;
        }
        Ok(used / count as f64)
    }

    /// Starts a container, and waits until its program runs.
    fn idle(&self, name: &str) -> Result<Child, Finding> {
        let program = ["sh", "-c", "echo ready; exec sleep 100000"];
        let mut container = self.podman(&["--rm", "--name", name], &program);
        let mut container = container
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut said = [0; 5];
        let output = container.stdout.as_mut();
        output.map_or(Ok(()), |output| output.read_exact(&mut said))?;
        Ok(container)
    }
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

fn available_kib() -> Result<f64, Finding> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    kib.ok_or_else(|| Finding::new("the kernel does not say what is available"))
}
