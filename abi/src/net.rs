//! Mirror of `include/insula_net.h`: what a lightweight kernel asks a network server.

/// `INSULA_NET_NONE`: no address.
pub const NONE: u64 = u64::MAX;

/// `enum insula_net_operation`. Words and results are in the header.
pub mod operation {
    /// `INSULA_NET_SOCKET`.
    pub const SOCKET: u32 = 1;
    /// `INSULA_NET_RELEASE`.
    pub const RELEASE: u32 = 2;
    /// `INSULA_NET_BIND`.
    pub const BIND: u32 = 3;
    /// `INSULA_NET_LISTEN`.
    pub const LISTEN: u32 = 4;
    /// `INSULA_NET_ACCEPT`.
    pub const ACCEPT: u32 = 5;
    /// `INSULA_NET_CONNECT`.
    pub const CONNECT: u32 = 6;
    /// `INSULA_NET_SEND`.
    pub const SEND: u32 = 7;
    /// `INSULA_NET_RECEIVE`.
    pub const RECEIVE: u32 = 8;
    /// `INSULA_NET_SHUTDOWN`.
    pub const SHUTDOWN: u32 = 9;
    /// `INSULA_NET_SET_OPTION`.
    pub const SET_OPTION: u32 = 10;
    /// `INSULA_NET_GET_OPTION`.
    pub const GET_OPTION: u32 = 11;
    /// `INSULA_NET_NAMES`.
    pub const NAMES: u32 = 12;
    /// `INSULA_NET_QUEUED`.
    pub const QUEUED: u32 = 13;
}

/// Bits of poll(2), as they tell what a socket is ready for.
pub mod ready {
    /// `POLLIN`.
    pub const IN: u32 = 0x1;
    /// `POLLOUT`.
    pub const OUT: u32 = 0x4;
    /// `POLLERR`.
    pub const ERROR: u32 = 0x8;
    /// `POLLHUP`.
    pub const HUP: u32 = 0x10;
    /// `POLLRDHUP`.
    pub const RDHUP: u32 = 0x2000;
}
