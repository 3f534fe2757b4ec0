//! Parsing and building virtio-msg messages.

use insula_abi::virtio::{BUS, Header, MESSAGE_MAX, RESPONSE};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// An invalid message of a driver: the session must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the node's driver sent an invalid message: {0}")]
pub(crate) struct ProtocolError(&'static str);

/// Destination of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Addressee {
    Bus,
    Device(u16),
}

/// A received request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request<'a> {
    header: Header,
    body: &'a [u8],
}

impl<'a> Request<'a> {
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, ProtocolError> {
        let (header, body) =
            Header::read_from_prefix(bytes).map_err(|_| ProtocolError("no header"))?;
        if bytes.len() > MESSAGE_MAX || usize::from(header.size) != bytes.len() {
            return Err(ProtocolError("wrong size in the header"));
        }
        if header.kind & !BUS != 0 {
            return Err(ProtocolError("not a request"));
        }
        Ok(Self { header, body })
    }

    pub(super) fn addressee(&self) -> Addressee {
        match self.header.kind & BUS {
            0 => Addressee::Device(self.header.device),
            _ => Addressee::Bus,
        }
    }

    /// The message id.
    pub(super) fn id(&self) -> u8 {
        self.header.id
    }

    /// The body, exactly a `T`.
    pub(super) fn body<T: FromBytes>(&self) -> Result<T, ProtocolError> {
        T::read_from_bytes(self.body).map_err(|_| ProtocolError("wrong size of the body"))
    }

    /// The `T` at the start of the body, and the rest.
    pub(super) fn body_and_rest<T: FromBytes + Immutable + KnownLayout>(
        &self,
    ) -> Result<(T, &'a [u8]), ProtocolError> {
        T::read_from_prefix(self.body).map_err(|_| ProtocolError("body too short"))
    }

    /// Fails if there is a body.
    pub(super) fn no_body(&self) -> Result<(), ProtocolError> {
        match self.body {
            [] => Ok(()),
            _ => Err(ProtocolError("unexpected body")),
        }
    }

    /// The response to this request: `body`, then `more`.
    pub(super) fn answer_with(&self, body: impl IntoBytes + Immutable, more: &[u8]) -> Vec<u8> {
        let body = body.as_bytes();
        let size = size_of::<Header>() + body.len() + more.len();
        debug_assert!(size <= MESSAGE_MAX, "an answer of {size} bytes");
        let header = Header {
            kind: self.header.kind | RESPONSE,
            size: size as u16,
            ..self.header
        };
        [header.as_bytes(), body, more].concat()
    }

    pub(super) fn answer(&self, body: impl IntoBytes + Immutable) -> Vec<u8> {
        self.answer_with(body, &[])
    }

    /// An empty response.
    pub(super) fn done(&self) -> Vec<u8> {
        self.answer(())
    }

    /// The error of an unknown request or argument.
    pub(super) fn unknown(&self) -> ProtocolError {
        ProtocolError("unknown request")
    }
}

/// An event message of a device.
pub(super) fn event(id: u8, device: u16, body: impl IntoBytes + Immutable) -> Vec<u8> {
    let header = Header {
        kind: 0,
        id,
        device,
        token: 0,
        size: (size_of::<Header>() + body.as_bytes().len()) as u16,
    };
    [header.as_bytes(), body.as_bytes()].concat()
}
