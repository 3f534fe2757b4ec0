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
use insula_server::files::{Files, Memory};
use insula_server::nvme::Completions;
use insula_server::programs::{FilesOptions, System};
use insula_server::{Endpoint, Error};

fn main() -> ExitCode {
    let options = FilesOptions::parse();
    let error: disk::Error = match options.system {
        System::Memory { size } => serve(&options.name, Files::new(Memory::new(size))).into(),
        System::Ext4 {
            device,
            cache,
            poll,
        } => match disk::serve(
            &options.name,
            (&device, Completions::of_option(poll)),
            cache,
        ) {
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
