//! Putting a node's servers on the cores that suit them: what `--place auto` asks for.
//!
//! One supervisor of the node does it for all of its servers; another one takes over when that ends. A program on the node
//! tells it once a second what the servers have done; what the cores have done is in memory that the node shares.

use std::io::{self, BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use insula_base::root::Root;
use insula_driver::name::Name;
use insula_driver::{Driver, name};
use insula_node::Handle;
use insula_node::stats;
use insula_privilege::die_with_parent;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::here::shard_number;
use super::on_node::{self, ServedEndpoint};
use super::placement::{Choice, Load, ServerLoad};
use super::record::{self, Place, ServerRecord};
use super::supervisor::node_of;

/// Time between attempts to begin.
const INTERVAL: Duration = Duration::from_secs(1);
/// Samples, one after the other, by which a move is chosen before it is made; and those after one by which none is.
const AGREED: u32 = 2;
const REST: u32 = 3;

/// A thread that does it. It has ended when this is dropped.
pub(crate) struct Placer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    is_ending: AtomicBool,
    /// The program on the node.
    watcher: Mutex<Option<OwnedFd>>,
}

impl Placer {
    /// Starts it for a node.
    ///
    /// # Errors
    /// When there can be no further thread.
    pub(crate) fn start(root: &Root, node_id: u32) -> io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let (own, root) = (Arc::clone(&shared), root.clone());
        let run = move || {
            while !own.is_ending() {
                // Another supervisor may do it, or the node may not run.
                let _ = own.place_servers(&root, node_id);
                own.pause();
            }
        };
        let thread = thread::Builder::new().name("placer".into()).spawn(run)?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }
}

impl Drop for Placer {
    fn drop(&mut self) {
        self.shared.is_ending.store(true, Ordering::Release);
        if let Some(watcher) = &*self.shared.watcher() {
            // It may have ended.
            let _ = pidfd_send_signal(watcher, Signal::KILL);
        }
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // One that panicked has ended as well.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Acquire)
    }

    fn watcher(&self) -> std::sync::MutexGuard<'_, Option<OwnedFd>> {
        self.watcher.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pause(&self) {
        if !self.is_ending() {
            thread::park_timeout(INTERVAL);
        }
    }

    /// Does it as long as the node's servers can be watched.
    fn place_servers(&self, root: &Root, node_id: u32) -> Result<(), Box<dyn std::error::Error>> {
        let Some(_lock) = record::try_lock_placement(root, node_id)? else {
            return Ok(());
        };
        let driver = Driver::open()?;
        let Some(node) = node_of(&driver, node_id)?.filter(Handle::is_running) else {
            return Ok(());
        };
        let name: Name = name::text(&node.info.name).parse()?;
        let mut command = on_node::command(&on_node::words(&name, &["watch"])?);
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        die_with_parent(&mut command);
        let mut child = command.spawn()?;
        let placed = self.place_as_told(&mut child, Placing::new(&driver, root, node_id));
        *self.watcher() = None;
        // It may have ended by itself.
        let _ = child.kill();
        child.wait()?;
        placed
    }

    /// Does it by what that program tells, until it ends, or this thread is to.
    fn place_as_told(
        &self,
        watcher: &mut Child,
        placing: Placing<'_>,
    ) -> Result<(), Box<dyn std::error::Error>> {
        let process = pidfd_open(Pid::from_child(watcher), PidfdFlags::empty())?;
        *self.watcher() = Some(process);
        let told = watcher.stdout.take().ok_or("it has no output")?;
        match self.is_ending() {
            true => Ok(()),
            false => placing.all(BufReader::new(told)),
        }
    }
}

/// What was measured at one moment.
struct Sample {
    at: Instant,
    /// Time for which each core has worked, in ns.
    cores: Vec<u64>,
    endpoints: Vec<ServedEndpoint>,
}

/// The servers of a node as they are placed.
struct Placing<'a> {
    driver: &'a Driver,
    root: &'a Root,
    node_id: u32,
    last: Option<Sample>,
    agreement: Agreement,
}

/// What several samples agree on.
#[derive(Default)]
struct Agreement {
    chosen: Option<Choice>,
    /// For how many samples that was chosen, and for how many nothing is to be.
    samples: u32,
    rest: u32,
}

impl<'a> Placing<'a> {
    fn new(driver: &'a Driver, root: &'a Root, node_id: u32) -> Self {
        Self {
            driver,
            root,
            node_id,
            last: None,
            agreement: Agreement::default(),
        }
    }

    /// Places them by each line that the program on the node tells.
    fn all(mut self, told: impl BufRead) -> Result<(), Box<dyn std::error::Error>> {
        for line in told.lines() {
            let endpoints = serde_json::from_str(&line?)?;
            let records = record::all(self.root)?.into_iter();
            let records = records.filter(|one| one.node_id == self.node_id);
            let records: Vec<_> = records
                .filter(|one| one.spec.place == Place::Auto)
                .collect();
            if records.is_empty() {
                break;
            }
            self.step(endpoints, &records)?;
        }
        Ok(())
    }

    fn step(
        &mut self,
        endpoints: Vec<ServedEndpoint>,
        records: &[ServerRecord],
    ) -> Result<(), Box<dyn std::error::Error>> {
        let node = node_of(self.driver, self.node_id)?.ok_or("it was removed")?;
        let (machine, _) = self.driver.machine()?;
        let programs = stats::of(&node, machine.tsc_khz)?.programs;
        let cores = programs.ok_or("it does not run")?.cores;
        let now = Sample {
            at: Instant::now(),
            cores: cores.iter().map(|core| core.busy_ns).collect(),
            endpoints,
        };
        let load = self.last.as_ref().map(|last| load(last, &now, records));
        self.last = Some(now);
        let choice = load.and_then(|load| load.choose());
        if let Some(choice) = self.agreement.on(choice) {
            let node: Name = name::text(&node.info.name).parse()?;
            on_node::place_alone(&node, &choice.server, u32::try_from(choice.core)?)?;
        }
        Ok(())
    }
}

impl Agreement {
    /// The choice, once it has been the same for long enough.
    fn on(&mut self, choice: Option<Choice>) -> Option<Choice> {
        self.samples = match choice.is_some() && choice == self.chosen {
            true => self.samples + 1,
            false => 1,
        };
        self.chosen = choice;
        if self.rest > 0 {
            self.rest -= 1;
            return None;
        }
        if self.samples < AGREED {
            return None;
        }
        self.rest = REST;
        self.chosen.take()
    }
}

/// What cores and servers had to do between two samples.
fn load(last: &Sample, now: &Sample, records: &[ServerRecord]) -> Load {
    let elapsed_ns = (now.at - last.at).as_nanos().max(1) as f64;
    let share = |before: u64, after: u64| after.saturating_sub(before) as f64 / elapsed_ns;
    let cores = last.cores.iter().zip(&now.cores);
    let cores: Vec<_> = cores
        .map(|(&before, &after)| share(before, after))
        .collect();
    let servers = now.endpoints.iter().filter_map(|after| {
        let record = records.iter().find(|record| has(record, after))?;
        let before = last.endpoints.iter().find(|one| one.name == after.name)?;
        // One that was started anew has no earlier figures.
        after.pid.filter(|_| before.pid == after.pid)?;
        let received = after.received.saturating_sub(before.received);
        let crossed = after.crossings.saturating_sub(before.crossings);
        Some(ServerLoad {
            name: after.name.clone(),
            core: match after.cpus.0[..] {
                [core] => Some(core as usize),
                _ => None,
            },
            allowed: match &record.spec.cpus.0[..] {
                [] => (0..cores.len()).collect(),
                some => some.iter().map(|&core| core as usize).collect(),
            },
            busy: share(before.busy_ns, after.busy_ns),
            crossed: crossed as f64 / received.max(1) as f64,
        })
    });
    Load {
        servers: servers.collect(),
        cores,
    }
}

/// Whether an endpoint is that of a server that is kept running, or of one of its shards.
fn has(record: &ServerRecord, endpoint: &ServedEndpoint) -> bool {
    let name = record.name.as_str();
    endpoint.name == name || shard_number(&endpoint.name, name).is_some()
}

#[cfg(test)]
mod tests {
    use insula_base::units::CpuList;

    use super::*;
    use crate::record::ServerSpec;

    fn sample(at: Instant, ms: u64, received: u64, pid: u32) -> Sample {
        Sample {
            at: at + Duration::from_millis(ms),
            cores: vec![ms * 1_000_000, ms * 250_000],
            endpoints: vec![ServedEndpoint {
                name: "file".into(),
                pid: Some(pid),
                threads: 1,
                waiting: 0,
                queued: 0,
                served: 0,
                received,
                crossings: received / 2,
                interrupts: 0,
                busy_ns: ms * 500_000,
                cpus: CpuList(vec![0]),
            }],
        }
    }

    #[test]
    fn a_load_is_what_came_between_two_samples() {
        let record = ServerRecord {
            node_id: 1,
            name: "file".parse().unwrap(),
            spec: ServerSpec {
                command: Vec::new(),
                cpus: CpuList::default(),
                place: Place::Auto,
            },
            project: None,
        };
        let (began, records) = (Instant::now(), [record]);
        let found = load(
            &sample(began, 1000, 100, 7),
            &sample(began, 3000, 300, 7),
            &records,
        );
        assert_eq!(found.cores, [1.0, 0.25]);
        let file = &found.servers[0];
        assert_eq!((file.core, &file.allowed[..]), (Some(0), &[0, 1][..]));
        assert_eq!((file.busy, file.crossed), (0.5, 0.5));
        let other = load(
            &sample(began, 0, 0, 7),
            &sample(began, 1000, 9, 8),
            &records,
        );
        assert_eq!(other.servers, []);
    }

    #[test]
    fn a_choice_is_made_when_it_lasts() {
        let to = |core| {
            Some(Choice {
                server: "file".into(),
                core,
            })
        };
        let mut agreement = Agreement::default();
        let steps = [to(1), to(2), to(2), to(0), to(0), to(0), None, to(0), to(0)];
        let made = steps.map(|choice| agreement.on(choice).map(|one| one.core));
        let none = None;
        assert_eq!(
            made,
            [none, none, Some(2), none, none, none, none, none, Some(0)]
        );
    }
}
