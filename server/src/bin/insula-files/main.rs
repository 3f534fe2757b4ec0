//! Program `insula-files`: a file server of a lightweight-kernel node.
//!
//! ```sh
//! insula exec quiet -- insula-files memory --size 64M &
//! insula exec --mount /data=file quiet -- sh -c 'cp -r /etc/apt /data && ls /data/apt'
//! ```

mod disk;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use insula_server::block::Source;
use insula_server::command::size;
use insula_server::files::{Files, Memory};
use insula_server::{Endpoint, Error};

/// Serves files to programs of a lightweight-kernel node, on which it runs
#[derive(Debug, Parser)]
#[command(name = "insula-files", version)]
struct Options {
    #[command(subcommand)]
    system: System,
    /// Name of the endpoint
    #[arg(long, global = true, default_value = "file")]
    name: String,
}

/// What file system it serves.
#[derive(Debug, Subcommand)]
enum System {
    /// A file system in memory, empty at first
    Memory {
        /// Most bytes of all files, such as 64M
        #[arg(long, default_value = "64M", value_parser = size)]
        size: u64,
    },
    /// A file system on disk that `mke2fs -t ext4` has made. SIGTERM and SIGINT unmount it
    Ext4 {
        /// File or block device of the base, or `nvme:ADDRESS`: the NVMe controller at that PCI address, such
        /// as nvme:0000:01:00.0, which the node was given by `insula run --device`; or `server:NAME`: what the
        /// block server of that name has
        #[arg(long)]
        device: Source,
        /// Most bytes that are cached, such as 64M
        #[arg(long, default_value = "64M", value_parser = size)]
        cache: u64,
        /// Look at an NVMe controller again and again while it works, rather than have it interrupt
        #[arg(long)]
        poll: bool,
    },
}

fn main() -> ExitCode {
    let options = Options::parse();
    let error: disk::Error = match options.system {
        System::Memory { size } => serve(&options.name, Files::new(Memory::new(size))).into(),
        System::Ext4 {
            device,
            cache,
            poll,
        } => match disk::serve(&options.name, (&device, poll.into()), cache) {
            Ok(()) => return ExitCode::SUCCESS,
            Err(error) => error,
        },
    };
    eprintln!("insula-files: {error}");
    ExitCode::FAILURE
}

/// Serves until a signal ends the process.
fn serve(name: &str, mut files: Files<Memory>) -> Error {
    const FOREVER: Option<Duration> = None;
    let endpoint = match Endpoint::create(name) {
        Ok(endpoint) => endpoint,
        Err(error) => return error,
    };
    loop {
        match endpoint.serve(&mut files, FOREVER) {
            Error::Interrupted => {}
            error => return error,
        }
    }
}
