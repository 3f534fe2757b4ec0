//! What endpoints a node has, and on which cores their servers run.

use std::time::Duration;

use insula_abi::NODE_CPUS_MAX;
use insula_abi::server::{ENDPOINT_CORES_WORDS, EndpointInfo};
use zerocopy::FromZeros;

use crate::{Error, sys};

/// An endpoint, as it is listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointState {
    /// Its name.
    pub name: String,
    /// Process id of its server; none if it has none now.
    pub server: Option<u32>,
    /// Threads of that process that serve no other endpoint.
    pub threads: u32,
    /// Those that wait for requests.
    pub waiting: u32,
    /// Requests that nobody has received.
    pub queued: u32,
    /// Requests that the server has.
    pub served: u32,
    /// Requests that servers have received since there is the endpoint.
    pub received: u64,
    /// Those from another core than the server's.
    pub crossings: u64,
    /// Interrupts of devices that servers have received.
    pub interrupts: u64,
    /// Processor time of these threads.
    pub busy: Duration,
    /// Cores on which its first thread may run, by the node's numbers.
    pub cores: Vec<u32>,
}

/// Returns all endpoints of this node, in the order of their names.
///
/// # Errors
/// [`Error::NotOnANode`].
pub fn endpoints() -> Result<Vec<EndpointState>, Error> {
    let mut listed = Vec::new();
    loop {
        let all = sys::list(&mut listed)?;
        if all <= listed.len() {
            // The kernel lists the first ones only if there are very many.
            let listed = listed[..all].iter().filter(|info| info.name[0] != 0);
            return Ok(listed.map(EndpointState::from).collect());
        }
        // One that is created meanwhile has room, too.
        listed.resize(all + 1, EndpointInfo::new_zeroed());
    }
}

/// Has all threads of a server run on these cores only, by the node's numbers. What it serves is not
/// disturbed.
///
/// # Errors
/// [`Error::NoServer`], [`Error::NotOnANode`]; `EINVAL` if the node has none of these cores.
pub fn place(name: &str, cores: &[u32]) -> Result<(), Error> {
    Ok(sys::place(name, &set_of(cores))?)
}

/// A set with a bit for each core; those that no node can have are left out.
fn set_of(cores: &[u32]) -> [u64; ENDPOINT_CORES_WORDS] {
    let mut set = [0; ENDPOINT_CORES_WORDS];
    for core in cores.iter().map(|core| *core as usize) {
        if let Some(word) = set.get_mut(core / 64) {
            *word |= 1 << (core % 64);
        }
    }
    set
}

impl From<&EndpointInfo> for EndpointState {
    fn from(info: &EndpointInfo) -> Self {
        let name = info.name.split(|byte| *byte == 0).next();
        let is_in = |core: &u32| info.cores[*core as usize / 64] >> (core % 64) & 1 != 0;
        Self {
            name: String::from_utf8_lossy(name.unwrap_or_default()).into_owned(),
            server: (info.server != 0).then_some(info.server),
            threads: info.threads,
            waiting: info.waiting,
            queued: info.queued,
            served: info.served,
            received: info.received,
            crossings: info.crossings,
            interrupts: info.interrupts,
            busy: Duration::from_nanos(info.busy_ns),
            cores: (0..NODE_CPUS_MAX as u32).filter(is_in).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_come_back() {
        let cores = [0, 3, 63, 64, 255];
        let mut info = EndpointInfo::new_zeroed();
        info.name[..4].copy_from_slice(b"file");
        info.cores = set_of(&[&cores[..], &[256, u32::MAX]].concat());
        info.server = 7;
        let state = EndpointState::from(&info);
        assert_eq!(state.cores, cores);
        assert_eq!((state.name.as_str(), state.server), ("file", Some(7)));
    }

    #[test]
    fn a_linux_has_no_endpoints() {
        assert_eq!(endpoints(), Err(Error::NotOnANode));
        assert_eq!(place("file", &[0]), Err(Error::NotOnANode));
    }
}
