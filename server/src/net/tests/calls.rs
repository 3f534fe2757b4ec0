//! Calls on sockets, as the kernel asks for them.

use insula_abi::net::{NONE, operation};
use nix::errno::Errno;
use nix::libc;

use super::Pair;
use crate::{Call, Words, local};

/// A word for 10.0.0.`end` + 1 and a port.
pub(super) fn address(end: usize, port: u16) -> u64 {
    (0x0a00_0001 + end as u64) << 16 | u64::from(port)
}

fn result(words: Words) -> Result<u64, Errno> {
    match words[0].cast_signed() {
        error @ -4095..0 => Err(Errno::from_raw(error.wrapping_neg() as i32)),
        _ => Ok(words[0]),
    }
}

impl Pair {
    fn ask(
        &mut self,
        (end, operation): (usize, u32),
        words: &[u64],
        (readable, writable): (&[u8], &mut [u8]),
    ) -> Words {
        let mut all = Words::default();
        all[..words.len()].copy_from_slice(words);
        let call = Call {
            operation,
            words: all,
            readable,
            writable,
            timeout: None,
        };
        local::call(&mut self.ends[end], call)
    }

    /// A call without data. Returns all words.
    pub(super) fn words(&mut self, end: usize, operation: u32, words: &[u64]) -> Words {
        self.ask((end, operation), words, (&[], &mut []))
    }

    /// A call without data.
    pub(super) fn call(&mut self, end: usize, operation: u32, words: &[u64]) -> Result<u64, Errno> {
        result(self.words(end, operation, words))
    }

    pub(super) fn socket(&mut self, end: usize, kind: i32) -> u64 {
        let handle = self.handle();
        let created = self.call(end, operation::SOCKET, &[handle, kind as u64]);
        assert_eq!(created, Ok(0));
        handle
    }

    pub(super) fn listener(&mut self, end: usize, port: u16, backlog: u64) -> u64 {
        let handle = self.socket(end, libc::SOCK_STREAM);
        let bound = self.call(end, operation::BIND, &[handle, u64::from(port)]);
        assert_eq!(bound, Ok(0));
        let listens = self.call(end, operation::LISTEN, &[handle, backlog]);
        assert_eq!(listens, Ok(0));
        handle
    }

    /// Begins to connect the first end to a port of the second.
    pub(super) fn connect(&mut self, port: u16) -> u64 {
        let handle = self.socket(0, libc::SOCK_STREAM);
        let connected = self.call(0, operation::CONNECT, &[handle, address(1, port)]);
        assert_eq!(connected, Err(Errno::EINPROGRESS));
        handle
    }

    pub(super) fn accept(&mut self, listener: u64) -> Result<u64, Errno> {
        let handle = self.handle();
        let accepted = self.call(1, operation::ACCEPT, &[listener, handle]);
        accepted.map(|_| handle)
    }

    /// Returns both ends of a connection.
    pub(super) fn connection(&mut self, port: u16) -> [u64; 2] {
        let listener = self.listener(1, port, 8);
        let one = self.connect(port);
        self.run(0);
        [one, self.accept(listener).unwrap()]
    }

    pub(super) fn send(&mut self, end: usize, handle: u64, bytes: &[u8]) -> Result<u64, Errno> {
        self.send_to(end, handle, NONE, bytes)
    }

    pub(super) fn send_to(
        &mut self,
        end: usize,
        handle: u64,
        to: u64,
        bytes: &[u8],
    ) -> Result<u64, Errno> {
        let operation = (end, operation::SEND);
        result(self.ask(operation, &[handle, to], (bytes, &mut [])))
    }

    /// Returns what was received, and the words of the reply.
    pub(super) fn receive_with(
        &mut self,
        end: usize,
        handle: u64,
        (most, flags): (usize, i32),
    ) -> Result<(Vec<u8>, Words), Errno> {
        let mut bytes = vec![0; most];
        let operation = (end, operation::RECEIVE);
        let words = self.ask(operation, &[handle, flags as u64], (&[], &mut bytes));
        let received = result(words)?;
        bytes.truncate(received as usize);
        Ok((bytes, words))
    }

    pub(super) fn receive(
        &mut self,
        end: usize,
        handle: u64,
        most: usize,
    ) -> Result<Vec<u8>, Errno> {
        self.receive_with(end, handle, (most, 0))
            .map(|(bytes, _)| bytes)
    }

    pub(super) fn option(
        &mut self,
        end: usize,
        handle: u64,
        (level, name): (i32, i32),
    ) -> Result<i32, Errno> {
        let mut value = [0; 4];
        let words = [handle, level as u64, name as u64];
        let got = result(self.ask((end, operation::GET_OPTION), &words, (&[], &mut value)));
        got.map(|_| i32::from_ne_bytes(value))
    }

    pub(super) fn set_option(
        &mut self,
        end: usize,
        handle: u64,
        (level, name): (i32, i32),
        value: &[u8],
    ) -> Result<u64, Errno> {
        let words = [handle, level as u64, name as u64];
        result(self.ask((end, operation::SET_OPTION), &words, (value, &mut [])))
    }

    /// What a socket is ready for, as a reply says it.
    pub(super) fn ready(&mut self, end: usize, handle: u64) -> u32 {
        self.words(end, operation::NAMES, &[handle])[1] as u32
    }
}
