//! Program `insula-network`: a network server of a lightweight-kernel node.
//!
//! ```sh
//! insula exec quiet -- insula-network --device virtio:0000:01:00.0 --address 10.0.0.2/24 &
//! insula exec --net net quiet -- redis-server --bind 0.0.0.0
//! ```

use std::fs::File;
use std::io::{self, Read};
use std::process::ExitCode;

use clap::Parser;
use insula_server::command::EndSignals;
use insula_server::net::{self, Addressing, Arrivals, Network};
use insula_server::pci::{self, ClaimedFunction, PciAddress};
use insula_server::programs::NetworkOptions;
use insula_server::virtio_net::{self, BAR, Layout, REGISTER_BYTES, VirtioNet};
use insula_server::{Endpoint, Error};

/// Why the network is not served, or no longer.
#[derive(Debug, thiserror::Error)]
enum ServeError {
    #[error("{0}")]
    Server(#[from] Error),
    #[error("cannot use virtio:{address}: {source}")]
    Device {
        address: PciAddress,
        source: pci::Error,
    },
    #[error("cannot use virtio:{address}: {source}")]
    Card {
        address: PciAddress,
        source: virtio_net::Error,
    },
    #[error("cannot catch signals: {0}")]
    Signals(io::Error),
    #[error("there are no random numbers: {0}")]
    Random(io::Error),
    #[error("{0}")]
    Serve(#[from] net::ServeError<virtio_net::Error>),
}

fn main() -> ExitCode {
    match serve(&NetworkOptions::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("insula-network: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(options: &NetworkOptions) -> Result<(), ServeError> {
    let signals = EndSignals::catch().map_err(ServeError::Signals)?;
    let card = start(options.device.0)?;
    let addressing = match options.address {
        Some(own) => Addressing::Static(own, options.gateway),
        None => Addressing::Dhcp,
    };
    let mut network = Network::new(card, addressing, seed().map_err(ServeError::Random)?);
    let endpoint = Endpoint::create(&options.name)?;
    let arrivals = match !options.poll && pci::interrupt(options.device.0, &endpoint).is_ok() {
        true => Arrivals::Interrupts,
        false => Arrivals::Polled,
    };
    let is_asked_for = options.address.is_none();
    net::serve(&endpoint, &mut network, arrivals, &signals, |network| {
        if let Some(own) = network.address().filter(|_| is_asked_for) {
            eprintln!("insula-network: the address is {own}");
        }
    })?;
    Ok(())
}

/// Claims a card, and starts it.
fn start(address: PciAddress) -> Result<VirtioNet<ClaimedFunction>, ServeError> {
    let claimed = ClaimedFunction::claim(address, BAR, REGISTER_BYTES);
    let function = claimed.map_err(|source| ServeError::Device { address, source })?;
    Layout::read(|offset| function.read_config(offset))
        .and_then(|layout| VirtioNet::start(function, layout))
        .map_err(|source| ServeError::Card { address, source })
}

/// Returns a random number, which makes those of connections hard to guess.
fn seed() -> io::Result<u64> {
    let mut bytes = [0; 8];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}
