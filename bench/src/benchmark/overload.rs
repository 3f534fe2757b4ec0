//! A server whose core is overloaded, and that stays, is moved by hand, or by a policy.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use testbed::base::{Finding, Shape};
use testbed::host::root::Root;

use super::{Benchmark, Row, Series, Unit};
use crate::held;
use crate::inside::{Inside, PROBE, pin};
use crate::load::{Load, Request, TIMEOUT, by_second};
use crate::statistics::quantile;

/// Core of the clients, of the server while it is on the base, and of the node.
const CLIENTS_CORE: usize = 0;
const SERVER_CORE: &str = "1";
const NODE_CORE: &str = "3";
const NODE: &str = "quiet";
const CLIENTS: usize = 64;
/// What a request costs the server: some milliseconds of an emulated core. With a ninth of it the server could
/// answer a few dozens a second, where its clients ask some hundred.
const TURNS: &str = "2000000";
/// Programs that compute on the server's core, too, and from when on.
const OTHERS: usize = 8;
const OVERLOADED_FROM: Duration = Duration::from_secs(10);
/// When it is moved by hand, and how long each way is measured.
const MOVED_AT: Duration = Duration::from_secs(20);
const WHOLE_S: u16 = 60;
const START_TIMEOUT: Duration = Duration::from_secs(60);
const POLICY_FILE: &str = "/run/overload.toml";
const POLICY_OUTPUT: &str = "/run/overload.log";
/// Share of time in which some task waits for a core, in percent, and what is little of it.
const PRESSURE: &str = "/proc/pressure/cpu";
const CALM: f64 = 5.0;
const PID_FILE: &str = "/run/overload.pid";
const POLICY: &str = r#"
[[policy]]
name = "overload"
pid_file = "/run/overload.pid"
node = "quiet"
when = ["pressure-cpu > 40"]
back = ["pressure-cpu < 1"]
for_s = 3
"#;

/// What is done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Stay,
    ByHand,
    ByPolicy,
}

impl Way {
    const ALL: [Self; 3] = [Self::Stay, Self::ByHand, Self::ByPolicy];

    fn name(self) -> &'static str {
        match self {
            Self::Stay => "stay",
            Self::ByHand => "hand",
            Self::ByPolicy => "policy",
        }
    }
}

pub(super) const BENCHMARK: Benchmark = Benchmark {
    name: "overload",
    title: "A server whose core is overloaded",
    how: "A server of one thread on a core of the base, which computes for some milliseconds for each request; 64 clients, \
          each with one request at a time, half a second after the answer to the one before, and none for more than a second: then it \
          has failed. From the tenth second on eight programs compute on the server's core, too. It *stays*; is moved *by hand* \
          in the twentieth second, by `insula move PID quiet`, to a core of the lightweight kernel; or *by a policy*: \
          `insula policy run` measures the base's pressure (`pressure-cpu > 40` for 3 s). Each way is measured for 60 s. The \
          chart has the failed requests of each second.",
    machine: Shape::USUAL,
    root: Root::Test,
    rounds: 1,
    inside,
    outside: None,
    counted: None,
    rows: &[
        count("overload.stay.failed", "failed requests, stays"),
        count("overload.hand.failed", "failed requests, moved by hand")
            .beside("overload.stay.failed"),
        count(
            "overload.policy.failed",
            "failed requests, moved by a policy",
        )
        .beside("overload.stay.failed"),
        count("overload.stay.answered", "answered requests, stays"),
        count("overload.hand.answered", "answered requests, moved by hand")
            .beside("overload.stay.answered"),
        count(
            "overload.policy.answered",
            "answered requests, moved by a policy",
        )
        .beside("overload.stay.answered"),
        time("overload.stay.median", "median of the answers, stays"),
        time(
            "overload.hand.median",
            "median of the answers, moved by hand",
        )
        .beside("overload.stay.median"),
        time(
            "overload.policy.median",
            "median of the answers, moved by a policy",
        )
        .beside("overload.stay.median"),
        time("overload.stay.p99", "99th percentile, stays"),
        time("overload.hand.p99", "99th percentile, moved by hand").beside("overload.stay.p99"),
        time("overload.policy.p99", "99th percentile, moved by a policy")
            .beside("overload.stay.p99"),
        time("overload.hand.move", "the command that moves it by hand"),
        count(
            "overload.policy.moved",
            "second in which the policy moves it",
        ),
        count("overload.stay.last", "second of the last failure, stays"),
        count(
            "overload.hand.last",
            "second of the last failure, moved by hand",
        ),
        count(
            "overload.policy.last",
            "second of the last failure, moved by a policy",
        ),
    ],
    series: &[
        Series {
            id: "overload.stay.second",
            what: "stays",
        },
        Series {
            id: "overload.hand.second",
            what: "moved by hand",
        },
        Series {
            id: "overload.policy.second",
            what: "moved by a policy",
        },
    ],
};

const fn count(id: &'static str, what: &'static str) -> Row {
    Row::time(id, what, "").unit(Unit::Count)
}

const fn time(id: &'static str, what: &'static str) -> Row {
    Row::time(id, what, "")
}

fn inside(inside: &Inside) -> Result<(), Finding> {
    pin(0, CLIENTS_CORE)?;
    fs::write(POLICY_FILE, POLICY)?;
    let node = [
        "--image",
        "lwk",
        "--cpu-list",
        NODE_CORE,
        "--memory",
        "128M",
    ];
    inside.command.start(NODE, &node)?;
    for _ in 0..inside.count {
        for way in Way::ALL {
            let requests = played(inside, way).map_err(|error| error.when(way.name()))?;
            record(inside, way, &requests)?;
        }
    }
    inside.command.run(&["rm", "--force", NODE]).map(drop)
}

fn played(inside: &Inside, way: Way) -> Result<Vec<Request>, Finding> {
    wait_until_calm()?;
    let server = Running::on_servers_core(&[PROBE, "hold", "1", TURNS])?;
    let pid = server.0.id().to_string();
    fs::write(PID_FILE, &pid)?;
    let policy = (way == Way::ByPolicy).then(|| Running::policy(inside));
    let policy = policy.transpose()?;
    let address = ([127, 0, 0, 1], held::PORT).into();
    wait_until_served(address)?;
    let load = Load::start(address, CLIENTS);
    load.wait_until(OVERLOADED_FROM);
    let others =
        (0..OTHERS).map(|_| Running::on_servers_core(&["sh", "-c", "while :; do :; done"]));
    let others = others.collect::<Result<Vec<_>, _>>()?;
    load.wait_until(MOVED_AT);
    if way == Way::ByHand {
        let began = Instant::now();
        inside.command.run(&["move", &pid, NODE])?;
        inside.record("overload.hand.move", began.elapsed())?;
    }
    load.wait_until(Duration::from_secs(WHOLE_S.into()));
    let requests = load.end()?;
    if policy.is_some() {
        let told = fs::read_to_string(POLICY_OUTPUT)?;
        let moved = moved_at_s(&told).ok_or_else(|| Finding::new(told))?;
        inside.record("overload.policy.moved", moved)?;
    }
    drop((policy, others, server));
    Ok(requests)
}

/// Waits until nobody has waited for a core for a while: a policy would take what was before for an overload.
fn wait_until_calm() -> Result<(), Finding> {
    let began = Instant::now();
    loop {
        let pressure = fs::read_to_string(PRESSURE)?;
        // `some avg10=0.00 avg60=…` (kernel: Documentation/accounting/psi.rst).
        let recent = pressure.split(['=', ' ']).nth(2);
        if recent.is_some_and(|recent| recent.parse().is_ok_and(|share: f64| share < CALM)) {
            return Ok(());
        }
        Finding::unless(began.elapsed() < START_TIMEOUT, || pressure.clone())?;
        thread::sleep(Duration::from_millis(500));
    }
}

/// When the policy has moved the program, by what it has told: `overload: 16.0 s: to 'quiet': …`.
fn moved_at_s(told: &str) -> Option<f64> {
    let moved = told.lines().find(|line| line.contains(" s: to '"))?;
    moved.split(' ').nth(1)?.parse().ok()
}

/// Waits until somebody listens.
fn wait_until_served(address: SocketAddr) -> Result<(), Finding> {
    let began = Instant::now();
    while let Err(error) = TcpStream::connect(address) {
        Finding::unless(began.elapsed() < START_TIMEOUT, || error.to_string())?;
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

fn record(inside: &Inside, way: Way, requests: &[Request]) -> Result<(), Finding> {
    let id = |what: &str| format!("overload.{}.{what}", way.name());
    let mut times: Vec<_> = requests
        .iter()
        .filter_map(|request| request.took)
        .map(|took| took.as_secs_f64() * 1e3)
        .collect();
    times.sort_unstable_by(f64::total_cmp);
    let failed = requests.iter().filter(|request| request.took.is_none());
    let last = failed.clone().map(|request| request.ended.as_secs()).max();
    inside.record(&id("failed"), failed.count() as f64)?;
    inside.record(&id("answered"), times.len() as f64)?;
    Finding::unless(!times.is_empty(), || "nothing was answered".into())?;
    inside.record(&id("median"), quantile(&times, 0.5))?;
    inside.record(&id("p99"), quantile(&times, 0.99))?;
    inside.record(&id("last"), last.unwrap_or(0) as f64)?;
    for (_, failed) in by_second(requests, WHOLE_S.into()) {
        inside.record(&id("second"), f64::from(failed))?;
    }
    Ok(())
}

/// A process that is killed when this is dropped.
struct Running(Child);

impl Running {
    fn on_servers_core(words: &[&str]) -> Result<Self, Finding> {
        let mut command = Command::new("taskset");
        command.args(["-c", SERVER_CORE]).args(words);
        Self::start(&mut command)
    }

    fn policy(inside: &Inside) -> Result<Self, Finding> {
        let mut command = inside.command.prepare();
        let command = command.args(["policy", "run", "--file", POLICY_FILE]);
        Ok(Self(
            command.stdout(fs::File::create(POLICY_OUTPUT)?).spawn()?,
        ))
    }

    fn start(command: &mut Command) -> Result<Self, Finding> {
        for set in [Command::stdin, Command::stdout, Command::stderr] {
            set(command, Stdio::null());
        }
        Ok(Self(command.spawn()?))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const _: () = assert!(TIMEOUT.as_secs() == 1, "as the text says");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_policy_tells_is_read() {
        let told = "overload: 0.0 s: stays on 'base': not pressure-cpu > 40, but 3.1\n\
                    overload: 16.5 s: to 'quiet': its conditions held for 3.0 of 3.0 s\n";
        assert_eq!(moved_at_s(told), Some(16.5));
        assert_eq!(moved_at_s(&told[..40]), None);
    }
}
