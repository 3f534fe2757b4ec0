//! Program `insula-files`: a file server of a lightweight-kernel node.
//!
//! ```sh
//! insula exec quiet -- insula-files memory --size 64M &
//! insula exec --mount /data=file quiet -- sh -c 'cp -r /etc/apt /data && ls /data/apt'
//! ```

mod disk;

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use insula_server::files::{Files, Memory, ShardThreads, Sharded};
use insula_server::nvme::Completions;
use insula_server::programs::{FilesOptions, System};
use insula_server::{Endpoint, Error, Handler};

/// Most bytes of content that shards of a file system in memory keep.
const CONTENT_MAX: u64 = 64 << 20;

fn main() -> ExitCode {
    let FilesOptions {
        system,
        name,
        shards,
        no_share,
    } = FilesOptions::parse();
    let shards = usize::from(shards);
    let served: Result<(), disk::Error> = match system {
        System::Memory { size } => {
            let system = Memory::new(size);
            serve((&name, no_share), system, (shards, size)).map_err(Into::into)
        }
        System::Ext4 {
            device,
            cache,
            poll,
        } => disk::serve(
            (&name, no_share),
            (&device, Completions::of_option(poll)),
            (shards, cache),
        ),
    };
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("insula-files: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Serves a file system in memory until a signal ends the process.
fn serve(
    (name, is_copied): (&str, bool),
    system: Memory,
    (shards, size): (usize, u64),
) -> Result<(), Error> {
    let endpoint = Endpoint::create(name)?;
    if shards == 0 {
        let mut files = Files::new(system).copied(is_copied);
        return serve_forever(&endpoint, &mut files);
    }
    let bytes = usize::try_from(size.min(CONTENT_MAX)).unwrap_or(usize::MAX);
    let (_, mut names, shards) = Sharded::new(system, shards, bytes);
    let _threads = ShardThreads::start((name, is_copied), shards)?;
    serve_forever(&endpoint, &mut names)
}

fn serve_forever(endpoint: &Endpoint, handler: &mut impl Handler) -> Result<(), Error> {
    const FOREVER: Option<Duration> = None;
    loop {
        match endpoint.serve(handler, FOREVER) {
            Error::Interrupted => {}
            error => return Err(error),
        }
    }
}
