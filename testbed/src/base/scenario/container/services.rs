//! Servers that nobody here has written move between kernels, again and again, each under a client that
//! checks what it gets: redis with an append-only file, PostgreSQL under pgbench, Python with threads, a server in Go,
//! and a session of ssh.

mod caddy;
pub(crate) mod large;
mod postgresql;
mod redis;
mod ssh;
mod threads;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};

use super::move_linux::{build_image, run_node};
use crate::base::support::insula_command::{insula, insula_json, text, wait_at_most, with_cleanup};
use crate::base::support::virtio_modules::{NETWORK_MODULES, SOCKET_MODULES, load_sockets, unload};
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::machine::Emulator;
use crate::host::root::Root;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "services",
    proves: "redis, PostgreSQL, Python, Go and ssh move between kernels while clients check them",
    machine: Shape {
        root: Root::Applications,
        emulator: Emulator::Backports,
        thread_per_core: true,
        ..Shape::USUAL
    },
    module: Module::Loaded,
    bases: &[],
    limit: std::time::Duration::from_secs(1800),
    soak_limit: Some(std::time::Duration::from_secs(4 * 3600)),
    play,
};

/// The nodes, by their kernels' versions.
const NODES: [&str; 2] = ["6.1", "6.12"];
/// Within what time a client goes on after a move: as long as TCP waits at most, and what it had begun.
const GOES_ON_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(300);
/// Pause between two questions: three servers and their clients share a few emulated cores.
const PAUSE: std::time::Duration = std::time::Duration::from_millis(200);
/// Answers after which a client is said to go on.
const GOES_ON: u64 = 3;

fn play(context: &Context) -> Result<(), Finding> {
    load_sockets()?;
    postgresql::prepare()?;
    let played = with_cleanup(|| played(context));
    postgresql::clean_up()?;
    played?;
    unload(&[&NETWORK_MODULES[..], &SOCKET_MODULES].concat())
}

fn played(context: &Context) -> Result<(), Finding> {
    for version in NODES {
        run_node(version, &build_image(context, version)?)?;
    }
    // The slowest first: the others' clients take from the node's core what they get.
    let clients = [
        postgresql::start(NODES[0])?,
        redis::start(NODES[0])?,
        threads::start(NODES[0])?,
        caddy::start(NODES[0])?,
        ssh::start(NODES[0])?,
    ];
    clients.iter().try_for_each(Client::goes_on)?;
    for round in 0..context.count(1, 25) {
        for to in [NODES[1], NODES[0]] {
            for client in &clients {
                let moved = insula(&["move", client.name, to])?;
                println!("round {round}: {}", moved.trim_end());
                client
                    .goes_on()
                    .map_err(|error| error.when(&format!("on {to}")))?;
            }
        }
    }
    for client in clients {
        client.end()?;
    }
    ssh::clean_up()?;
    let [redis, postgresql] = [redis::NAME, postgresql::NAME].map(address);
    redis::has_all(&redis?)?;
    postgresql::has_all(&postgresql?)?;
    NODES
        .iter()
        .try_for_each(|node| insula(&["rm", "--force", node]).map(drop))
}

/// Starts a container, and returns its address.
fn start(name: &str, node: &str, program: &[&str]) -> Result<String, Finding> {
    let exec = ["exec", "--container", name, "-d", node, "--"];
    insula(&[&exec[..], program].concat())?;
    address(name)
}

fn address(name: &str) -> Result<String, Finding> {
    Ok(text(&insula_json(&["inspect", name])?[0]["address"]))
}

/// Asks a server again and again, and checks its answers.
struct Client {
    name: &'static str,
    answers: Arc<AtomicU64>,
    ending: Arc<AtomicBool>,
    /// Why it has failed.
    failure: Arc<OnceLock<String>>,
    thread: JoinHandle<()>,
}

impl Client {
    /// Begins to ask; `ask` asks once, and checks the answer to the question of this number.
    fn start(
        name: &'static str,
        mut ask: impl FnMut(u64) -> Result<(), Finding> + Send + 'static,
    ) -> Self {
        let (answers, ending) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (counted, ended) = (Arc::clone(&answers), Arc::clone(&ending));
        let failure = Arc::<OnceLock<String>>::default();
        let told = Arc::clone(&failure);
        let thread = thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                let number = counted.load(Ordering::Relaxed);
                if let Err(error) = ask(number) {
                    let text = format!("{name}, question {number}: {error}");
                    return told.set(text).unwrap_or_default();
                }
                counted.store(number + 1, Ordering::Relaxed);
                thread::sleep(PAUSE);
            }
        });
        Self {
            name,
            answers,
            ending,
            failure,
            thread,
        }
    }

    /// Waits until it has got more answers.
    fn goes_on(&self) -> Result<(), Finding> {
        let before = self.answers.load(Ordering::Relaxed);
        wait_at_most(
            GOES_ON_TIMEOUT,
            &format!("answers of {}", self.name),
            || {
                has_not_failed(&self.failure)?;
                let panicked = || format!("a client of {} panicked", self.name);
                Finding::unless(!self.thread.is_finished(), panicked)?;
                let now = self.answers.load(Ordering::Relaxed);
                Ok((now >= before + GOES_ON).then_some(()))
            },
        )
    }

    /// Ends it; all its answers must have been right.
    fn end(self) -> Result<(), Finding> {
        self.ending.store(true, Ordering::Relaxed);
        let (name, answers, failure) = (self.name, self.answers, self.failure);
        let panicked = |_| Finding::new(format!("a client of {name} panicked"));
        self.thread.join().map_err(panicked)?;
        has_not_failed(&failure)?;
        println!("{name}: {} answers", answers.load(Ordering::Relaxed));
        Ok(())
    }
}

fn has_not_failed(failure: &OnceLock<String>) -> Result<(), Finding> {
    match failure.get() {
        Some(why) => Err(Finding::new(why.clone())),
        None => Ok(()),
    }
}
