//! Mirror of `include/insula_server.h`: messages between processes of one lightweight-kernel node.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `INSULA_SYS_ENDPOINT_CREATE`.
pub const SYS_ENDPOINT_CREATE: u64 = 1024;
/// `INSULA_SYS_ENDPOINT_OPEN`.
pub const SYS_ENDPOINT_OPEN: u64 = 1025;
/// `INSULA_SYS_ENDPOINT_CLOSE`.
pub const SYS_ENDPOINT_CLOSE: u64 = 1026;
/// `INSULA_SYS_MESSAGE_SEND`.
pub const SYS_MESSAGE_SEND: u64 = 1027;
/// `INSULA_SYS_MESSAGE_RECEIVE`.
pub const SYS_MESSAGE_RECEIVE: u64 = 1028;
/// `INSULA_SYS_MESSAGE_READ`.
pub const SYS_MESSAGE_READ: u64 = 1029;
/// `INSULA_SYS_MESSAGE_WRITE`.
pub const SYS_MESSAGE_WRITE: u64 = 1030;
/// `INSULA_SYS_ENDPOINT_LIST`.
pub const SYS_ENDPOINT_LIST: u64 = 1031;
/// `INSULA_SYS_ENDPOINT_PLACE`.
pub const SYS_ENDPOINT_PLACE: u64 = 1032;

/// `INSULA_ENDPOINT_NAME_MAX`: longest name of an endpoint, in bytes.
pub const ENDPOINT_NAME_MAX: usize = 64;
/// `INSULA_ENDPOINT_HANDLES_MAX`: most handles of a process.
pub const ENDPOINT_HANDLES_MAX: usize = 256;
/// `INSULA_ENDPOINT_CORES_WORDS`: words of a set of cores.
pub const ENDPOINT_CORES_WORDS: usize = crate::NODE_CPUS_MAX / 64;
/// `INSULA_MESSAGE_WORDS`: words of a message.
pub const MESSAGE_WORDS: usize = 6;
/// `INSULA_MESSAGE_BATCH_MAX`: most requests received, and replies made, by one call.
pub const MESSAGE_BATCH_MAX: usize = 64;
/// `INSULA_MESSAGE_COPY_MAX`: most bytes that one call copies for a request.
pub const MESSAGE_COPY_MAX: u64 = 1 << 20;
/// `INSULA_MESSAGE_FOREVER`: no timeout.
pub const MESSAGE_FOREVER: u64 = u64::MAX;

/// `enum insula_announcement`: what a reply to no request announces, by its last word.
pub mod announcement {
    /// `INSULA_ANNOUNCE_SOCKET`: what a socket is ready for.
    pub const SOCKET: u64 = 0;
    /// `INSULA_ANNOUNCE_FILE_PAGE`: a page of a file is shared.
    pub const FILE_PAGE: u64 = 1;
    /// `INSULA_ANNOUNCE_FILE_INVALID`: pages of a file are not any more.
    pub const FILE_INVALID: u64 = 2;
    /// `INSULA_ANNOUNCE_FILE_CHANGED`: the server is to be asked for the next read of a file.
    pub const FILE_CHANGED: u64 = 3;
    /// `INSULA_ANNOUNCE_FILE_MAPPED`: a page of a file that is mapped.
    pub const FILE_MAPPED: u64 = 4;
}

/// `struct insula_server_message`: a request, as the client sends it and gets it back, and as the server
/// receives it.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct Message {
    /// Server: its number. Client: 0.
    pub request: u64,
    /// What is asked for.
    pub operation: u32,
    /// Server: the client's process id. Client: 0.
    pub sender: u32,
    /// Client: the reply's, when the call returns.
    pub words: [u64; MESSAGE_WORDS],
    /// Client: start of what the server may read. Server: 0.
    pub readable_address: u64,
    /// Bytes of that.
    pub readable_length: u64,
    /// Client: start of what the server may write. Server: where it wants the first bytes of what it
    /// may read; then 0.
    pub writable_address: u64,
    /// Bytes of that. Server: after the call, bytes that it may write.
    pub writable_length: u64,
}

/// `struct insula_server_reply`: a reply.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct Reply {
    /// Number of the request.
    pub request: u64,
    /// For the client.
    pub words: [u64; MESSAGE_WORDS],
    /// Start of the server's memory that is copied to what it may write.
    pub data_address: u64,
    /// Bytes of that.
    pub data_length: u64,
}

/// `struct insula_server_endpoint`: an endpoint, as it is listed.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct EndpointInfo {
    /// Its name, followed by zeros.
    pub name: [u8; ENDPOINT_NAME_MAX],
    /// Process id of its server; 0 if it has none now.
    pub server: u32,
    /// Threads of that process that serve no other endpoint.
    pub threads: u32,
    /// Those that wait for requests.
    pub waiting: u32,
    /// Requests that nobody has received.
    pub queued: u32,
    /// Requests that the server has.
    pub served: u32,
    /// 0.
    pub reserved: u32,
    /// Requests that servers have received since there is the endpoint.
    pub received: u64,
    /// Those from another core than the server's.
    pub crossings: u64,
    /// Interrupts that servers have received.
    pub interrupts: u64,
    /// Processor time of these threads.
    pub busy_ns: u64,
    /// Cores on which the first of them may run, a bit for each.
    pub cores: [u64; ENDPOINT_CORES_WORDS],
}
