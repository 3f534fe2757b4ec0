//! Layout of `insula_server.h` as the Rust mirror has it.

use insula_abi::server as rust;
use insula_abi::server::{EndpointInfo, Message, Reply, announcement};

use super::{Facts, structure, values};

pub(crate) fn structures() -> Facts {
    let mut facts = Facts::new();
    structure!(
        facts,
        Message,
        "insula_server_message",
        [
            request,
            operation,
            sender,
            words,
            readable_address,
            readable_length,
            writable_address,
            writable_length
        ]
    );
    structure!(
        facts,
        Reply,
        "insula_server_reply",
        [request, words, data_address, data_length]
    );
    structure!(
        facts,
        EndpointInfo,
        "insula_server_endpoint",
        [
            name, server, threads, waiting, queued, served, reserved, received, crossings,
            interrupts, busy_ns, cores
        ]
    );
    facts
}

pub(crate) fn constants() -> Facts {
    let mut facts = Facts::new();
    values!(facts, {
        INSULA_SYS_ENDPOINT_CREATE = rust::SYS_ENDPOINT_CREATE,
        INSULA_SYS_ENDPOINT_OPEN = rust::SYS_ENDPOINT_OPEN,
        INSULA_SYS_ENDPOINT_CLOSE = rust::SYS_ENDPOINT_CLOSE,
        INSULA_SYS_MESSAGE_SEND = rust::SYS_MESSAGE_SEND,
        INSULA_SYS_MESSAGE_RECEIVE = rust::SYS_MESSAGE_RECEIVE,
        INSULA_SYS_MESSAGE_READ = rust::SYS_MESSAGE_READ,
        INSULA_SYS_MESSAGE_WRITE = rust::SYS_MESSAGE_WRITE,
        INSULA_SYS_ENDPOINT_LIST = rust::SYS_ENDPOINT_LIST,
        INSULA_SYS_ENDPOINT_PLACE = rust::SYS_ENDPOINT_PLACE,
        INSULA_ENDPOINT_NAME_MAX = rust::ENDPOINT_NAME_MAX,
        INSULA_ENDPOINT_HANDLES_MAX = rust::ENDPOINT_HANDLES_MAX,
        INSULA_ENDPOINT_CORES_WORDS = rust::ENDPOINT_CORES_WORDS,
        INSULA_MESSAGE_WORDS = rust::MESSAGE_WORDS,
        INSULA_MESSAGE_BATCH_MAX = rust::MESSAGE_BATCH_MAX,
        INSULA_MESSAGE_COPY_MAX = rust::MESSAGE_COPY_MAX,
        INSULA_MESSAGE_FOREVER = rust::MESSAGE_FOREVER.cast_signed(),
    });
    facts
}

pub(crate) fn enumerators() -> Facts {
    let mut facts = Facts::new();
    values!(facts, {
        INSULA_ANNOUNCE_SOCKET = announcement::SOCKET,
        INSULA_ANNOUNCE_FILE_PAGE = announcement::FILE_PAGE,
        INSULA_ANNOUNCE_FILE_INVALID = announcement::FILE_INVALID,
        INSULA_ANNOUNCE_FILE_CHANGED = announcement::FILE_CHANGED,
        INSULA_ANNOUNCE_FILE_MAPPED = announcement::FILE_MAPPED,
    });
    facts
}
