//! A server with shards, asked as the kernel asks it: names by one thread, open files by the shard that the reply to an open
//! has named.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use insula_abi::files::operation;

use super::cached::{OfShard, Pages};
use crate::files::{FileSystem, Files, Shard, Sharded, SharedSystem};
use crate::{Handler, Reply, Request, Words};

/// Its threads, each of which answers one request at a time.
struct Threads<F> {
    sharded: Sharded<F>,
    names: Mutex<Files<SharedSystem<F>>>,
    shards: Vec<Mutex<Shard<F>>>,
}

/// What a client knows of it.
pub(crate) struct Routed<F> {
    threads: Arc<Threads<F>>,
    /// Shard of each open file, by its handle; 0 for names.
    routes: BTreeMap<u64, u64>,
    data: Vec<u8>,
}

impl<F: FileSystem> Routed<F> {
    pub(super) fn new(system: F, shards: usize, bytes: usize) -> Self {
        let (sharded, names, shards) = Sharded::new(system, shards, bytes);
        let shards = shards.into_iter().map(Mutex::new).collect();
        Self::of(&Arc::new(Threads {
            sharded,
            names: Mutex::new(names),
            shards,
        }))
    }

    fn of(threads: &Arc<Threads<F>>) -> Self {
        Self {
            threads: Arc::clone(threads),
            routes: BTreeMap::new(),
            data: Vec::new(),
        }
    }

    /// Has the kernel read shared pages by itself.
    pub(super) fn share(&self, pages: &Pages) {
        for (number, shard) in (1..).zip(&self.threads.shards) {
            let announcer = OfShard(number, pages.clone());
            shard.lock().unwrap().share_pages(Arc::new(announcer));
        }
    }

    /// Another client of the same server.
    pub(super) fn another(&self) -> Self {
        Self::of(&self.threads)
    }

    /// Returns the file system.
    pub(crate) fn end(self) -> F {
        let Threads {
            sharded,
            names,
            shards,
        } = Arc::into_inner(self.threads).unwrap();
        drop((names, shards));
        sharded.into_system().unwrap()
    }

    /// Has a thread answer. Returns the words of the reply.
    fn answer(&mut self, handler: &Mutex<impl Handler>, request: &Request<'_>) -> Words {
        let mut handler = handler.lock().unwrap();
        let reply = handler.handle(request);
        self.data.clear();
        self.data.extend_from_slice(reply.data);
        reply.words
    }
}

impl<F: FileSystem> Handler for Routed<F> {
    fn handle<'a>(&'a mut self, request: &Request<'_>) -> Reply<'a> {
        let threads = Arc::clone(&self.threads);
        let words = match self.routes.get(&request.words[0]) {
            Some(0) | None => self.answer(&threads.names, request),
            Some(&shard) => self.answer(&threads.shards[shard as usize - 1], request),
        };
        if request.operation == operation::OPEN && words[0] == 0 {
            self.routes.insert(request.words[3], words[3]);
        }
        Reply::new(words, &self.data)
    }
}
