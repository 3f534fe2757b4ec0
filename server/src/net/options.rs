//! Options of sockets (socket(7), tcp(7), ip(7)).

use std::collections::BTreeMap;

use nix::errno::Errno;
use nix::libc;

/// An option: its level and name.
pub(super) type OptionName = (u32, u32);

const fn socket(name: i32) -> OptionName {
    (libc::SOL_SOCKET as u32, name as u32)
}

const fn tcp(name: i32) -> OptionName {
    (libc::IPPROTO_TCP as u32, name as u32)
}

const fn ip(name: i32) -> OptionName {
    (libc::IPPROTO_IP as u32, name as u32)
}

pub(super) const ERROR: OptionName = socket(libc::SO_ERROR);
pub(super) const TYPE: OptionName = socket(libc::SO_TYPE);
pub(super) const DOMAIN: OptionName = socket(libc::SO_DOMAIN);
pub(super) const PROTOCOL: OptionName = socket(libc::SO_PROTOCOL);
pub(super) const ACCEPTS: OptionName = socket(libc::SO_ACCEPTCONN);
pub(super) const KEEP_ALIVE: OptionName = socket(libc::SO_KEEPALIVE);
pub(super) const LINGER: OptionName = socket(libc::SO_LINGER);
pub(super) const NO_DELAY: OptionName = tcp(libc::TCP_NODELAY);
pub(super) const KEEP_IDLE: OptionName = tcp(libc::TCP_KEEPIDLE);
pub(super) const HOP_LIMIT: OptionName = ip(libc::IP_TTL);

/// Options that can be set, with their values at the start: those above have an effect, the others are
/// kept for who asks.
const SETTABLE: [(OptionName, i32); 20] = [
    (KEEP_ALIVE, 0),
    (LINGER, 0),
    (NO_DELAY, 0),
    (KEEP_IDLE, 7200),
    (HOP_LIMIT, 64),
    (socket(libc::SO_REUSEADDR), 0),
    (socket(libc::SO_REUSEPORT), 0),
    (socket(libc::SO_BROADCAST), 0),
    (socket(libc::SO_SNDBUF), super::stream::BUFFER as i32),
    (socket(libc::SO_RCVBUF), super::stream::BUFFER as i32),
    (socket(libc::SO_PRIORITY), 0),
    (socket(libc::SO_OOBINLINE), 0),
    (tcp(libc::TCP_KEEPINTVL), 75),
    (tcp(libc::TCP_KEEPCNT), 9),
    (tcp(libc::TCP_DEFER_ACCEPT), 0),
    (tcp(libc::TCP_QUICKACK), 1),
    (tcp(libc::TCP_USER_TIMEOUT), 0),
    (tcp(libc::TCP_CORK), 0),
    (ip(libc::IP_TOS), 0),
    (ip(libc::IP_BIND_ADDRESS_NO_PORT), 0),
];

/// The options that a socket has been given.
#[derive(Clone, Debug, Default)]
pub(super) struct Options(BTreeMap<OptionName, i32>);

impl Options {
    /// Returns the value of one that can be set.
    pub(super) fn get(&self, option: OptionName) -> Result<i32, Errno> {
        let mut settable = SETTABLE.iter();
        let (_, usual) = settable
            .find(|(known, _)| *known == option)
            .ok_or(Errno::ENOPROTOOPT)?;
        Ok(self.0.get(&option).copied().unwrap_or(*usual))
    }

    /// Whether one is set to other than 0.
    pub(super) fn is_set(&self, option: OptionName) -> bool {
        self.get(option).is_ok_and(|value| value != 0)
    }

    /// Sets one.
    pub(super) fn set(&mut self, option: OptionName, value: i32) -> Result<(), Errno> {
        self.get(option)?;
        self.0.insert(option, value);
        Ok(())
    }
}
