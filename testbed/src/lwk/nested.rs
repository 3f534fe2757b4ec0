//! Ioctl of a driver unknown to Insula, as in the paper: a pointer inside a structure inside a
//! structure (`testbed/src/base/driver/insula_nested.c`).

use std::fs::File;
use std::os::fd::AsRawFd;

use nix::libc;

use super::{Named, ProbeError, call};

#[repr(C)]
struct Text {
    from: u64,
    to: u64,
    size: u64,
}

#[repr(C)]
struct Request {
    text: u64,
    letters: u64,
}

/// `NESTED_CAPITALS`: `_IOWR('i', 1, struct nested_request)`.
const CAPITALS: u64 = 3 << 30 | (size_of::<Request>() as u64) << 16 | 0x69 << 8 | 1;
/// Several pages, none of them touched before.
const SIZE: usize = 20_000;

pub(super) fn probe() -> Result<(), ProbeError> {
    let device = File::options()
        .read(true)
        .write(true)
        .open("/dev/insula-nested");
    let device = device.map_err(|error| ProbeError::Wrong(format!("no device: {error}")))?;
    let from: Vec<u8> = (0..SIZE)
        .map(|at| b"many kernels, one machine. "[at % 27])
        .collect();
    let mut to = vec![0_u8; SIZE];
    let text = Text {
        from: from.as_ptr().expose_provenance() as u64,
        to: to.as_mut_ptr().expose_provenance() as u64,
        size: SIZE as u64,
    };
    let mut request = Request {
        text: (&raw const text).expose_provenance() as u64,
        letters: 0,
    };
    let mut ask = |text| {
        request.text = text;
        let argument = (&raw mut request).expose_provenance() as u64;
        let file = device.as_raw_fd() as u64;
        // SAFETY: the driver reads the structures, and writes to `to` and the request only.
        let result = unsafe { call(libc::SYS_ioctl as u64, [file, CAPITALS, argument, 0, 0, 0]) };
        (result, request.letters)
    };
    let (done, letters) = ask((&raw const text).expose_provenance() as u64);
    done.named("the ioctl")?;
    println!("{letters} letters: {}", String::from_utf8_lossy(&to[..27]));
    if to != from.to_ascii_uppercase() {
        return Err(ProbeError::Wrong("the text is not in capitals".into()));
    }
    println!("a wild pointer within: {:?}", ask(16).0);
    Ok(())
}
