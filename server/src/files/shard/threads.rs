//! The threads of shards.

use std::sync::Arc;
use std::thread::{self, JoinHandle};

use nix::errno::Errno;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use super::Shard;
use crate::files::system::FileSystem;
use crate::{Endpoint, Error};

/// Threads that serve shards, until they are told to end.
#[derive(Debug)]
pub struct ShardThreads {
    shards: Vec<(Arc<Endpoint>, JoinHandle<()>)>,
}

impl ShardThreads {
    /// Serves shards at the endpoints `NAME.1`, `NAME.2`, and so on, each by a thread. The calling thread and these go
    /// to one core each of those that the process may use, in turn. The kernel reads pages by itself, unless all `is_copied`.
    ///
    /// # Errors
    /// [`Error`]; those of pthread_create(3).
    pub fn start<F: FileSystem + Send + 'static>(
        (name, is_copied): (&str, bool),
        shards: Vec<Shard<F>>,
    ) -> Result<Self, Error> {
        let cores = own_cores()?;
        run_on(&cores, 0)?;
        let mut started = Self { shards: Vec::new() };
        for (number, shard) in (1..).zip(shards) {
            let endpoint = Arc::new(Endpoint::create(&format!("{name}.{number}"))?);
            if !is_copied {
                shard.share_pages(Arc::clone(&endpoint) as _);
            }
            let (served, cores) = (Arc::clone(&endpoint), cores.clone());
            let serve = move || serve(&served, shard, (&cores, number));
            let thread = thread::Builder::new().name(format!("shard {number}"));
            let thread = thread.spawn(serve).map_err(|_| Errno::EAGAIN)?;
            started.shards.push((endpoint, thread));
        }
        Ok(started)
    }
}

impl Drop for ShardThreads {
    /// Ends them. Whom they serve gets an error. The thread of names may announce at their endpoints still, in vain.
    fn drop(&mut self) {
        for (endpoint, thread) in self.shards.drain(..) {
            endpoint.close();
            // One that has panicked has ended, too.
            let _ = thread.join();
        }
    }
}

fn serve<F: FileSystem>(
    endpoint: &Endpoint,
    mut shard: Shard<F>,
    (cores, number): (&[usize], usize),
) {
    // Elsewhere it serves as well.
    let _ = run_on(cores, number);
    // The thread that has the names sees whether a signal is to end the server.
    while endpoint.serve(&mut shard, None) == Error::Interrupted {}
}

/// Returns the cores that this thread may use.
fn own_cores() -> Result<Vec<usize>, Errno> {
    let set = sched_getaffinity(Pid::from_raw(0))?;
    let is_set = |core: &usize| set.is_set(*core).unwrap_or(false);
    Ok((0..CpuSet::count()).filter(is_set).collect())
}

/// Has this thread run on the core of a number, counted round.
fn run_on(cores: &[usize], number: usize) -> Result<(), Errno> {
    let mut set = CpuSet::new();
    set.set(cores[number % cores.len()])?;
    sched_setaffinity(Pid::from_raw(0), &set)
}
