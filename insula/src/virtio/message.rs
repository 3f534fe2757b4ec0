//! Messages, as bytes: taking them apart and putting them together.

use insula_abi::virtio::{BUS, Header, MESSAGE_MAX, RESPONSE};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// What no driver sends: the session is of no use any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the node's driver sends what is no message: {0}")]
pub struct Nonsense(&'static str);

/// Whom a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Addressee {
    Bus,
    Device(u16),
}

/// A request as it came.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request<'a> {
    header: Header,
    body: &'a [u8],
}

impl<'a> Request<'a> {
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, Nonsense> {
        let (header, body) =
            Header::read_from_prefix(bytes).map_err(|_| Nonsense("it has no header"))?;
        if bytes.len() > MESSAGE_MAX || usize::from(header.size) != bytes.len() {
            return Err(Nonsense("its size is another one"));
        }
        if header.kind & !BUS != 0 {
            return Err(Nonsense("it is no request"));
        }
        Ok(Self { header, body })
    }

    pub(super) fn addressee(&self) -> Addressee {
        match self.header.kind & BUS {
            0 => Addressee::Device(self.header.device),
            _ => Addressee::Bus,
        }
    }

    /// What is asked.
    pub(super) fn id(&self) -> u8 {
        self.header.id
    }

    /// The body, which must be a `T` and nothing else.
    pub(super) fn body<T: FromBytes>(&self) -> Result<T, Nonsense> {
        T::read_from_bytes(self.body).map_err(|_| Nonsense("its body has another size"))
    }

    /// A body that begins with a `T`, and the rest of it.
    pub(super) fn body_and_rest<T: FromBytes + Immutable + KnownLayout>(
        &self,
    ) -> Result<(T, &'a [u8]), Nonsense> {
        T::read_from_prefix(self.body).map_err(|_| Nonsense("its body is too short"))
    }

    /// Fails unless there is no body.
    pub(super) fn no_body(&self) -> Result<(), Nonsense> {
        match self.body {
            [] => Ok(()),
            _ => Err(Nonsense("it has a body")),
        }
    }

    /// The answer to this: a `T`, then more bytes.
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

    /// The answer that something was done.
    pub(super) fn done(&self) -> Vec<u8> {
        self.answer(())
    }

    /// What is asked for is not known here.
    pub(super) fn unknown(&self) -> Nonsense {
        Nonsense("nobody knows what it asks for")
    }
}

/// A message of a device that nobody has asked for.
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
