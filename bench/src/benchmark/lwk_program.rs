//! Debian's programs on the lightweight kernel, compared with Linux on the same core.

use testbed::base::{Finding, Shape};
use testbed::host::root::Root;

use super::{Benchmark, Row, Unit};
use crate::inside::{Inside, LwkNode, Place, output};

/// Core of the base's process, then of the node.
const CORE: usize = 3;
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
          second. Servers are measured by `server`.",
    machine: Shape::USUAL,
    root: Root::Test,
    rounds: 2,
    inside,
    outside: None,
    counted: None,
    series: &[],
    rows: &[
        Row::time("lwk-program.python.linux", "python3 on Linux", "").drawn(),
        Row::time("lwk-program.python.lwk", "python3 on the node", "")
            .beside("lwk-program.python.linux")
            .drawn(),
        rate("lwk-program.openssl.linux", "openssl on Linux"),
        rate("lwk-program.openssl.lwk", "openssl on the node").beside("lwk-program.openssl.linux"),
    ],
};

const fn rate(id: &'static str, what: &'static str) -> Row {
    Row::time(id, what, "openssl speed -seconds 1 -bytes 1024 sha256")
        .unit(Unit::MegabytesPerSecond)
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
    inside.record(&format!("lwk-program.openssl.{row}"), rate)
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
