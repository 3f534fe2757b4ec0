//! Debian's programs on the lightweight kernel, compared with Linux on the same core.

use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use testbed::base::{Finding, Shape};
use testbed::host::root::Root;

use super::{Benchmark, Row, Unit};
use crate::inside::{Inside, LwkNode, Place, output, program};

/// Core of the base's process, then of the node.
const CORE: usize = 3;
/// Core of the clients.
const CLIENT: &str = "1";
const PORT: &str = "7379";
const REQUESTS: &str = "2000";
/// Time limit for a server to start.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Prints the duration of the work, in milliseconds.
const PYTHON: &str = "import time
began = time.perf_counter()
words = {}
for i in range(300_000):
    word = str(i * i % 9973)
    words[word] = words.get(word, 0) + i
assert sum(words.values()) == 300_000 * 299_999 // 2
print((time.perf_counter() - began) * 1e3)";

pub(super) const BENCHMARK: Benchmark = Benchmark {
    name: "lwk-program",
    title: "Programs on the lightweight kernel",
    how: "Debian's programs, unmodified, on one core: first as a process of the base that is \
          bound to it, then on a node that has it. *python3* fills a dictionary and measures the \
          time itself; *openssl* is `openssl speed` of SHA-256 in blocks of 1 KiB, for one \
          second; *redis* is redis-server with `redis-benchmark` on another core of the base, \
          2,000 requests over TCP by 5 connections at once: on the node each of them is some \
          delegated calls.",
    machine: Shape::USUAL,
    root: Root::Test,
    rounds: 2,
    inside,
    outside: None,
    counted: None,
    rows: &[
        Row::time("lwk-program.python.linux", "python3 on Linux", "").drawn(),
        Row::time("lwk-program.python.lwk", "python3 on the node", "")
            .beside("lwk-program.python.linux")
            .drawn(),
        rate("lwk-program.openssl.linux", "openssl on Linux"),
        rate("lwk-program.openssl.lwk", "openssl on the node").beside("lwk-program.openssl.linux"),
        request(
            "lwk-program.redis.linux",
            "redis on Linux, time per request",
        ),
        request(
            "lwk-program.redis.lwk",
            "redis on the node, time per request",
        )
        .beside("lwk-program.redis.linux"),
    ],
};

const fn rate(id: &'static str, what: &'static str) -> Row {
    Row::time(id, what, "openssl speed -seconds 1 -bytes 1024 sha256")
        .unit(Unit::MegabytesPerSecond)
}

const fn request(id: &'static str, what: &'static str) -> Row {
    Row::time(id, what, "redis-benchmark -n 2000 -c 5 -t set").unit(Unit::Microseconds)
}

fn inside(inside: &Inside) -> Result<(), Finding> {
    for _ in 0..inside.count {
        measure(inside, Place::Base(CORE), "linux")?;
        let lwk_node = LwkNode::start(inside, CORE)?;
        measure(inside, Place::Lwk, "lwk")?;
        lwk_node.remove()?;
    }
    Ok(())
}

fn measure(inside: &Inside, place: Place, row: &str) -> Result<(), Finding> {
    let text = output(inside, place, &["/usr/bin/python3", "-c", PYTHON])?;
    let took_ms: f64 = text.trim().parse()?;
    inside.record(&format!("lwk-program.python.{row}"), took_ms)?;
    let rate = openssl(inside, place)?;
    inside.record(&format!("lwk-program.openssl.{row}"), rate)?;
    let request_us = redis(inside, place)?;
    inside.record(&format!("lwk-program.redis.{row}"), request_us)
}

/// Throughput in MB/s.
fn openssl(inside: &Inside, place: Place) -> Result<f64, Finding> {
    let words = [
        "/usr/bin/openssl",
        "speed",
        "-seconds",
        "1",
        "-bytes",
        "1024",
        "sha256",
    ];
    let text = output(inside, place, &words)?;
    let line = text.lines().rfind(|line| line.starts_with("sha256"));
    let figure = line.and_then(|line| line.split_whitespace().next_back()?.strip_suffix('k'));
    let figure = figure.ok_or_else(|| Finding::new(format!("openssl measured: {text}")))?;
    Ok(figure.parse::<f64>()? / 1e3)
}

/// Time of a request, in microseconds.
fn redis(inside: &Inside, place: Place) -> Result<f64, Finding> {
    let words = [
        "/usr/bin/redis-server",
        "--port",
        PORT,
        "--save",
        "",
        "--bind",
        "127.0.0.1",
    ];
    let mut server = program(inside, place, &words)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()?;
    let measured = answers().and_then(|()| {
        let words = ["-n", REQUESTS, "-c", "5", "-t", "set", "--csv"];
        let text = client("redis-benchmark", &words)?;
        client("redis-cli", &["shutdown", "nosave"])?;
        let line = text.lines().rfind(|line| line.starts_with("\"SET\""));
        let rate = line.and_then(|line| line.split(',').nth(1)?.trim_matches('"').parse().ok());
        rate.map(|rate: f64| 1e6 / rate)
            .ok_or_else(|| Finding::new(format!("redis-benchmark measured: {text}")))
    });
    if measured.is_err() {
        server.kill()?;
    }
    server.wait()?;
    measured
}

/// Waits until the server answers.
fn answers() -> Result<(), Finding> {
    let began = Instant::now();
    while client("redis-cli", &["ping"])? != "PONG\n" {
        Finding::unless(began.elapsed() < TIMEOUT, || "redis does not answer".into())?;
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

fn client(program: &str, words: &[&str]) -> Result<String, Finding> {
    let mut command = Command::new("taskset");
    command
        .args(["-c", CLIENT, program, "-p", PORT])
        .args(words);
    let output = command.output()?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
