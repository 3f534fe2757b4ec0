//! Giving a copy of a node an identity of its own.

use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;

use insula_agent::frame::{self, Reader};
use insula_agent::{Identity, Renamed, Request};
use insula_base::error::Error;
use insula_driver::Driver;
use insula_driver::name::Name;
use insula_node::{self as node, HostName};

use super::clock::{now_ns, set_clock};
use super::connect::to_agent;

/// Random bytes for the copy: twice the key size of the kernel's generator.
const SEED_SIZE: usize = 64;
/// Time that the agent has to answer.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Succeeds if the node's agent answers: without one a copy of the node could not be renamed.
///
/// # Errors
/// When it does not.
pub fn check_agent(driver: &Driver, name: &Name) -> Result<(), Error> {
    to_agent(driver, name).map(drop)
}

/// Waits for the agent of a copy, and has it take an identity of its own: its name as host name, a
/// machine id, random numbers, the time, and its address.
///
/// # Errors
/// When it does not answer, or could not take all of it.
pub fn rename(driver: &Driver, name: &Name) -> Result<(), Error> {
    let stream = to_agent(driver, name)?;
    let handle = node::find(driver, name)?;
    let network = handle
        .record
        .as_ref()
        .and_then(|record| record.network.as_ref());
    let address = network.map(|network| network.address(handle.info.id));
    let host = handle.record.as_ref();
    let host = host.and_then(|record| record.spec.hostname.as_ref());
    let host = host.map_or(name.as_str(), HostName::as_str);
    let attempt = || -> io::Result<Renamed> {
        stream.set_read_timeout(Some(TIMEOUT))?;
        frame::write(&stream, &Request::Rename(identity(host, address)?))?;
        let mut reader = Reader::new(&stream);
        let renamed: Option<Renamed> = reader.read().map_err(io::Error::other)?;
        renamed.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    };
    let Renamed { errors } = attempt().map_err(|error| not_renamed(name).because(error))?;
    match errors.first() {
        // Exactly: what it was told took a while.
        None => set_clock(driver, name),
        Some(error) => Err(not_renamed(name).because(error.clone())),
    }
}

fn identity(host: &str, address: Option<Ipv4Addr>) -> io::Result<Identity> {
    let mut random = [0; SEED_SIZE + 16];
    let mut filled = 0;
    while filled < random.len() {
        filled +=
            rustix::rand::getrandom(&mut random[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    let (seed, id) = random.split_at(SEED_SIZE);
    Ok(Identity {
        host: host.to_owned(),
        machine: id.iter().map(|byte| format!("{byte:02x}")).collect(),
        seed: seed.to_vec(),
        unix_ns: now_ns(),
        address,
    })
}

fn not_renamed(name: &Name) -> Error {
    Error::new(format!(
        "the copy '{name}' could not take an identity of its own"
    ))
}
