//! Command line of `insula-network`.

use std::str::FromStr;

use clap::Parser;

use crate::net::{Ipv4Address, Ipv4Cidr};
use crate::pci::{AddressError, PciAddress};

/// Serves the sockets of programs of a lightweight-kernel node, on which it runs, by a network card of the node. SIGTERM
/// and SIGINT have it end
#[derive(Clone, Debug, PartialEq, Eq, Parser)]
#[command(name = "insula-network", version)]
pub struct NetworkOptions {
    /// Name of the endpoint
    #[arg(long, default_value = "net")]
    pub name: String,
    /// `virtio:ADDRESS`: the virtio network card at that PCI address, such as virtio:0000:01:00.0, which the node was
    /// given by `insula run --device`
    #[arg(long)]
    pub device: Card,
    /// Own address, and bits of its network's, such as 10.0.0.2/24; by DHCP if not given
    #[arg(long, value_parser = network)]
    pub address: Option<Ipv4Cidr>,
    /// Router to other networks
    #[arg(long, value_name = "ADDRESS", requires = "address")]
    pub gateway: Option<Ipv4Address>,
    /// Look at the card again and again, rather than have it interrupt when a frame arrives after a pause
    #[arg(long)]
    pub poll: bool,
}

/// A network card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Card(pub PciAddress);

/// A text is no network card.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CardError {
    /// It has another form.
    #[error("it has the form virtio:ADDRESS")]
    Form,
    /// What follows is no address.
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
