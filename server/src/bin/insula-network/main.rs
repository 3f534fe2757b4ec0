//! Program `insula-network`: a network server of a lightweight-kernel node.
//!
//! ```sh
//! insula exec quiet -- insula-network --device virtio:0000:01:00.0 --address 10.0.0.2/24 &
//! insula exec --net net quiet -- redis-server --bind 0.0.0.0
//! ```

use std::fs::File;
use std::io::{self, Read};
use std::process::ExitCode;
use std::str::FromStr;

use clap::Parser;
use insula_server::command::EndSignals;
use insula_server::net::{self, Addressing, Arrivals, Ipv4Address, Ipv4Cidr, Network};
use insula_server::pci::{self, AddressError, ClaimedFunction, PciAddress};
use insula_server::virtio_net::{self, BAR, Layout, REGISTER_BYTES, VirtioNet};
use insula_server::{Endpoint, Error};

/// Serves the sockets of programs of a lightweight-kernel node, on which it runs, by a network card of the node. SIGTERM
/// and SIGINT have it end
#[derive(Debug, Parser)]
#[command(name = "insula-network", version)]
struct Options {
    /// Name of the endpoint
    #[arg(long, default_value = "net")]
    name: String,
    /// `virtio:ADDRESS`: the virtio network card at that PCI address, such as virtio:0000:01:00.0, which the node was
    /// given by `insula run --device`
    #[arg(long)]
    device: Card,
    /// Own address, and bits of its network's, such as 10.0.0.2/24; by DHCP if not given
    #[arg(long, value_parser = network)]
    address: Option<Ipv4Cidr>,
    /// Router to other networks
    #[arg(long, value_name = "ADDRESS", requires = "address")]
    gateway: Option<Ipv4Address>,
    /// Look at the card again and again, rather than have it interrupt when a frame arrives after a pause
    #[arg(long)]
    poll: bool,
}

/// A network card.
#[derive(Clone, Copy, Debug)]
struct Card(PciAddress);

/// A text is no network card.
#[derive(Debug, thiserror::Error)]
enum CardError {
    #[error("it has the form virtio:ADDRESS")]
    Form,
    #[error(transparent)]
    Address(#[from] AddressError),
}

impl FromStr for Card {
    type Err = CardError;

    fn from_str(text: &str) -> Result<Self, CardError> {
        let address = text.strip_prefix("virtio:").ok_or(CardError::Form)?;
        Ok(Self(address.parse()?))
    }
}

/// Reads an own address.
fn network(text: &str) -> Result<Ipv4Cidr, &'static str> {
    let form = "it has the form ADDRESS/BITS, such as 10.0.0.2/24";
    let own: Ipv4Cidr = text.parse().map_err(|()| form)?;
    match own.address().is_unspecified() || own.address().is_multicast() {
        true => Err("it is no address of a computer"),
        false => Ok(own),
    }
}

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
    match serve(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("insula-network: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(options: &Options) -> Result<(), ServeError> {
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
