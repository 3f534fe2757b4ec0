//! Values of `insula_net.h` as the Rust mirror has them.

use insula_abi::net::{NONE, operation};

use super::{Facts, values};

pub(crate) fn constants() -> Facts {
    let mut facts = Facts::new();
    values!(facts, {
        INSULA_NET_NONE = NONE.cast_signed(),
    });
    facts
}

pub(crate) fn enumerators() -> Facts {
    let mut facts = Facts::new();
    values!(facts, {
        INSULA_NET_SOCKET = operation::SOCKET,
        INSULA_NET_RELEASE = operation::RELEASE,
        INSULA_NET_BIND = operation::BIND,
        INSULA_NET_LISTEN = operation::LISTEN,
        INSULA_NET_ACCEPT = operation::ACCEPT,
        INSULA_NET_CONNECT = operation::CONNECT,
        INSULA_NET_SEND = operation::SEND,
        INSULA_NET_RECEIVE = operation::RECEIVE,
        INSULA_NET_SHUTDOWN = operation::SHUTDOWN,
        INSULA_NET_SET_OPTION = operation::SET_OPTION,
        INSULA_NET_GET_OPTION = operation::GET_OPTION,
        INSULA_NET_NAMES = operation::NAMES,
        INSULA_NET_QUEUED = operation::QUEUED,
    });
    facts
}
