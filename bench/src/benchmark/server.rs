//! Servers, and starts of programs, on the lightweight kernel: what lives by short calls.

use std::fs;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use testbed::base::{Finding, Shape};
use testbed::host::root::Root;

use super::{Benchmark, Row, Unit};
use crate::inside::{Inside, LwkNode, PROBE, Place, program};

/// Core of the clients, of the base's servers, and of the node.
const CLIENT: usize = 1;
const SERVER: usize = 2;
const NODE: usize = 3;
const REDIS_PORT: &str = "7379";
const NGINX_SERVER: &str = "127.0.0.1:7380";
/// Requests of redis' client.
const REQUESTS: &str = "1000";
/// Time limit for a server to start.
const TIMEOUT: Duration = Duration::from_secs(60);
const FOLDER: &str = "/run/nginx";
const NGINX: &str =
    "user root; daemon off; master_process off; pid /run/nginx/pid; error_log stderr;
events {}
http {
	access_log off; keepalive_requests 100000; server { listen 127.0.0.1:7380; root /run/nginx; }
}";
/// Size of the page that nginx serves, in bytes.
const PAGE_BYTES: usize = 4096;

pub(super) const BENCHMARK: Benchmark = Benchmark {
    name: "server",
    title: "Servers and starts on the lightweight kernel",
    how: "Debian's redis and nginx, unmodified, on one core of the base, then on a node; their clients on another \
          core of the base. Of redis the time for each of 1,000 requests, by one connection and by 50; of nginx the \
          median of 500 requests of 4 KiB on one connection. On the node a request is three or more delegated calls: \
          client, proxy and core must run at once, so on a computer with fewer processors than the emulated machine \
          these rows show the computer's lack of them. Under Bochs (`EMULATOR=bochs`) all cores advance together. \
          *Start* is fork(2), execve(2) of `/bin/true`, linked dynamically, and wait4(2), the median of 30.",
    machine: Shape::USUAL,
    root: Root::Test,
    rounds: 2,
    inside,
    outside: None,
    counted: None,
    series: &[],
    rows: &[
        time(
            "server.redis-1.linux",
            "redis on Linux, 1 connection",
            "redis-benchmark -n 1000 -c 1 -t set",
        ),
        time("server.redis-1.lwk", "redis on the node, 1 connection", "")
            .beside("server.redis-1.linux")
            .drawn(),
        time(
            "server.redis-50.linux",
            "redis on Linux, 50 connections",
            "redis-benchmark -n 1000 -c 50 -t set",
        ),
        time(
            "server.redis-50.lwk",
            "redis on the node, 50 connections",
            "",
        )
        .beside("server.redis-50.linux")
        .drawn(),
        time("server.nginx.linux", "nginx on Linux", ""),
        time("server.nginx.lwk", "nginx on the node", "")
            .beside("server.nginx.linux")
            .drawn(),
        time("server.start.linux", "start on Linux", ""),
        time("server.start.lwk", "start on the node", "")
            .beside("server.start.linux")
            .drawn(),
    ],
};

const fn time(id: &'static str, what: &'static str, command: &'static str) -> Row {
    Row::time(id, what, command).unit(Unit::Microseconds)
}

fn inside(inside: &Inside) -> Result<(), Finding> {
    fs::create_dir_all(FOLDER)?;
    fs::write(format!("{FOLDER}/conf"), NGINX)?;
    fs::write(format!("{FOLDER}/index.html"), [b'x'; PAGE_BYTES])?;
    let lwk_node = LwkNode::start(inside, NODE)?;
    for _ in 0..inside.count {
        for (place, row) in [(Place::Base(SERVER), "linux"), (Place::Lwk, "lwk")] {
            redis(inside, place, row)?;
            nginx(inside, &lwk_node, place, row)?;
            let round = lwk_node.round(place, &["starts", "/bin/true"])?;
            inside.record(&format!("server.start.{row}"), round.median_us)?;
        }
    }
    lwk_node.remove()
}

fn redis(inside: &Inside, place: Place, row: &str) -> Result<(), Finding> {
    let own = ["/usr/bin/redis-server", "--port", REDIS_PORT];
    let words = [&own[..], &["--save", "", "--bind", "127.0.0.1"]].concat();
    with_server(inside, place, &words, || {
        wait_for("redis", || {
            Ok(redis_client("redis-cli", &["ping"])? == "PONG\n")
        })?;
        for connections in ["1", "50"] {
            let words = ["-n", REQUESTS, "-c", connections, "-t", "set", "--csv"];
            let text = redis_client("redis-benchmark", &words)?;
            let line = text.lines().rfind(|line| line.starts_with("\"SET\""));
            let rate = line.and_then(|line| line.split(',').nth(1)?.trim_matches('"').parse().ok());
            let rate: f64 =
                rate.ok_or_else(|| Finding::new(format!("redis-benchmark measured: {text}")))?;
            inside.record(&format!("server.redis-{connections}.{row}"), 1e6 / rate)?;
        }
        end(&["redis-cli", "-p", REDIS_PORT, "shutdown", "nosave"])
    })
}

fn redis_client(program: &str, words: &[&str]) -> Result<String, Finding> {
    client(&[&[program, "-p", REDIS_PORT], words].concat())
}

fn nginx(inside: &Inside, lwk_node: &LwkNode<'_>, place: Place, row: &str) -> Result<(), Finding> {
    let words = ["/usr/sbin/nginx", "-c", "/run/nginx/conf"];
    with_server(inside, place, &words, || {
        let probe = || client(&[PROBE, "get", NGINX_SERVER]);
        wait_for("nginx", || Ok(!probe()?.is_empty()))?;
        let round = lwk_node.round(Place::Base(CLIENT), &["get", NGINX_SERVER])?;
        inside.record(&format!("server.nginx.{row}"), round.median_us)?;
        end(&["sh", "-c", "kill -QUIT $(cat /run/nginx/pid)"])
    })
}

/// Runs a server while something is measured that ends it.
fn with_server(
    inside: &Inside,
    place: Place,
    words: &[&str],
    measure: impl FnOnce() -> Result<(), Finding>,
) -> Result<(), Finding> {
    let mut server = program(inside, place, words);
    let server = server.stdin(Stdio::null()).stdout(Stdio::null());
    let mut server: Child = server.spawn()?;
    let measured = measure();
    if measured.is_err() {
        server.kill()?;
    }
    server.wait()?;
    measured
}

fn wait_for(what: &str, answers: impl Fn() -> Result<bool, Finding>) -> Result<(), Finding> {
    let began = Instant::now();
    while !answers()? {
        Finding::unless(began.elapsed() < TIMEOUT, || {
            format!("{what} does not answer")
        })?;
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Output of a program on the clients' core, which may fail: a server does not answer at once.
fn client(words: &[&str]) -> Result<String, Finding> {
    let output = run(words)?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Ends a server by a program, which must succeed: else its end would be waited for without end.
fn end(words: &[&str]) -> Result<(), Finding> {
    let output = run(words)?;
    Finding::unless(output.status.success(), || {
        format!("`{}` failed: {output:?}", words.join(" "))
    })
}

fn run(words: &[&str]) -> Result<Output, Finding> {
    let mut command = Command::new("taskset");
    let command = command.args(["-c", &CLIENT.to_string()]).args(words);
    Ok(command.output()?)
}
