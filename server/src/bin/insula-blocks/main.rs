//! Program `insula-blocks`: a block server of a lightweight-kernel node, with a cache or without.
//!
//! ```sh
//! insula exec quiet -- insula-blocks --name disk --device nvme:0000:01:00.0 &
//! insula exec quiet -- insula-blocks --name block --device server:disk --cache 64M &
//! insula exec quiet -- insula-files ext4 --device server:block &
//! ```

use std::process::ExitCode;

use clap::Parser;
use insula_server::block::{BlockDevice, Blocks, CachedDevice, DeviceError, Source, SourceError};
use insula_server::command::EndSignals;
use insula_server::nvme::Completions;
use insula_server::programs::BlocksOptions;
use insula_server::{Endpoint, Error};
use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;

/// Why it is not served, or no longer.
#[derive(Debug, thiserror::Error)]
enum ServeError {
    #[error("{0}")]
    Server(#[from] Error),
    #[error("cannot use {device}: {source}")]
    Device { device: Source, source: SourceError },
    #[error("what was written last may be lost: {0}")]
    Flush(#[from] DeviceError),
    #[error("cannot catch signals: {0}")]
    Signals(#[from] std::io::Error),
}

fn main() -> ExitCode {
    match serve(&BlocksOptions::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("insula-blocks: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(options: &BlocksOptions) -> Result<(), ServeError> {
    let signals = EndSignals::catch()?;
    let endpoint = Endpoint::create(&options.name)?;
    let opened = options.device.open(Completions::of_option(options.poll));
    let device = opened.map_err(|source| ServeError::Device {
        device: options.device.clone(),
        source,
    })?;
    let bytes = usize::try_from(options.cache).unwrap_or(usize::MAX);
    let device: Box<dyn BlockDevice + Send> = match bytes {
        0 => device,
        bytes => Box::new(CachedDevice::new(device, bytes)),
    };
    let mut blocks = Blocks::new(device, is_alive);
    let ended = signals.serve(&endpoint, &mut blocks, |_| ());
    blocks.flush()?;
    Ok(ended?)
}

/// Whether there is a process of that id: one may not be allowed to signal it.
fn is_alive(process: u32) -> bool {
    let process = Pid::from_raw(process.cast_signed());
    kill(process, None) != Err(Errno::ESRCH)
}
