//! The memory that a request names, and no other.

use std::fs::File;
use std::io::Write;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;

use insula_abi::server::{MESSAGE_FOREVER, Message, SYS_MESSAGE_SEND};
use insula_server::{Call, Client, Error, Words};
use nix::errno::Errno;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap};

use crate::lwk::messages::equal;
use crate::lwk::messages::processes::{Process, failed, open, operation};
use crate::lwk::{Named, ProbeError, call};

const NAME: &str = "memory";

/// A server reaches what a request names, up to its end. A client that names what it does not have gets
/// an error, and the server goes on.
pub(super) fn is_within_its_bounds() -> Result<(), ProbeError> {
    let _server = Process::server(NAME, None)?;
    let client = open(NAME)?;
    for (offset, length, expected) in [
        (0, 100, 100),
        (50, 100, 50),
        (100, 1, 0),
        (1 << 40, 8, 0),
        (u64::MAX, 8, 0),
        (0, 5000, 100),
    ] {
        let mut memory = [0; 300];
        let (readable, rest) = memory.split_at_mut(100);
        let (writable, behind) = rest.split_at_mut(100);
        let words: Words = [offset, length, 0, 0, 0, 0];
        let got = client.call(Call {
            operation: operation::REACH,
            words,
            readable,
            writable,
            timeout: None,
        });
        let got = got.map_err(failed)?;
        equal("bytes reached", &[got[0], got[1]], &[expected, expected])?;
        let changed = writable.iter().filter(|byte| **byte == 0xee).count() as u64;
        equal("bytes written", &changed, &expected)?;
        equal(
            "what is behind",
            &behind.iter().any(|byte| *byte != 0),
            &false,
        )?;
    }
    is_refused(&client)
}

/// Memory that is not there, or that the client must not write.
fn is_refused(client: &Client) -> Result<(), ProbeError> {
    static READ_ONLY: [u8; 64] = [7; 64];
    let mut own = [0_u8; 64];
    let bad = [
        (0x10, 64, own.as_mut_ptr() as u64, 64),
        (u64::MAX - 8, 64, own.as_mut_ptr() as u64, 64),
        (own.as_ptr() as u64, 64, READ_ONLY.as_ptr() as u64, 64),
        (own.as_ptr() as u64, 1 << 60, 0x10, 1 << 60),
    ];
    for (readable_address, readable_length, writable_address, writable_length) in bad {
        let mut message = Message {
            operation: operation::INVERT_IN_PARTS,
            readable_address,
            readable_length,
            writable_address,
            writable_length,
            ..Message::default()
        };
        // The server is asked by parts, or the kernel copies the first bytes: one of them fails.
        let at = &raw mut message as u64;
        // SAFETY: the message is written; the other memory is not, or as the server may.
        let _ = unsafe { call(SYS_MESSAGE_SEND, [0, at, MESSAGE_FOREVER, 0, 0, 0]) };
    }
    equal("the constant", &READ_ONLY, &[7; 64])?;
    // SAFETY: there is no message.
    let found = unsafe { call(SYS_MESSAGE_SEND, [0, 0x10, MESSAGE_FOREVER, 0, 0, 0]) };
    equal("a message that is not there", &found, &Err(Errno::EFAULT))?;
    let answer = client.call(Call::default()).map_err(failed)?;
    equal("the server afterwards", &answer[0], &1)
}

/// Pages of files, which are the base's, are faulted in for whichever side needs them.
pub(super) fn may_be_a_files() -> Result<(), ProbeError> {
    const SIZE: usize = 3 << 16;
    let _server = Process::server(NAME, None)?;
    let client = open(NAME)?;
    let mut file = File::from(memfd_create(c"messages", MFdFlags::empty()).named("memfd")?);
    let content: Vec<u8> = (0..SIZE).map(|at| (at / 4096 + at) as u8).collect();
    file.write_all(&content).map_err(io)?;
    let target = File::from(memfd_create(c"messages", MFdFlags::empty()).named("memfd")?);
    target.set_len(SIZE as u64).map_err(io)?;
    for operation in [operation::INVERT, operation::INVERT_IN_PARTS] {
        let readable = &*mapped(&file, SIZE)?;
        let writable = mapped(&target, SIZE)?;
        client
            .call(Call {
                operation,
                readable,
                writable,
                ..Call::default()
            })
            .map_err(failed)?;
        let is_right = content
            .iter()
            .zip(&*writable)
            .all(|(one, two)| *one == !two);
        equal("bytes of a file", &is_right, &true)?;
    }
    // Beyond its end.
    file.set_len(4096).map_err(io)?;
    let readable = &*mapped(&file, SIZE)?;
    let found = client.call(Call {
        operation: operation::REACH,
        words: [8192, 64, 0, 0, 0, 0],
        readable,
        ..Call::default()
    });
    match found {
        Ok(words) if words[0] == u64::MAX => Ok(()),
        Err(Error::Other(Errno::EFAULT)) => Ok(()),
        other => crate::lwk::messages::wrong(format!("beyond a file's end: {other:?}")),
    }
}

fn io(error: std::io::Error) -> ProbeError {
    ProbeError::Wrong(error.to_string())
}

fn mapped(file: &File, size: usize) -> Result<&'static mut [u8], ProbeError> {
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let size = NonZeroUsize::new(size).ok_or(ProbeError::Unknown)?;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let start = unsafe {
        mmap(
            None,
            size,
            protection,
            MapFlags::MAP_SHARED,
            file.as_fd(),
            0,
        )
    };
    let start = start.named("mmap")?.cast::<u8>();
    // SAFETY: it is that large and never unmapped; who has truncated the file does not touch it.
    Ok(unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), size.get()) })
}
