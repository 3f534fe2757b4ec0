//! Requests and pins that outlast what they belong to: a mapping, a process.

use std::fs::File;
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

use super::ring::{Request, Ring};
use super::{BUFFERS, BY_WORKER, PAGES, READ, SUBMITS_ITSELF, fresh, pipe, send, transfer};
use crate::lwk::memory::mappings::{PAGE, read, unmap, write};
use crate::lwk::{Named, ProbeError, in_a_child};

/// `IORING_REGISTER_BUFFERS` and its opposite, `IORING_REGISTER_FILES`.
const REGISTER_BUFFERS: u64 = 0;
const UNREGISTER_BUFFERS: u64 = 1;
const REGISTER_FILES: u64 = 2;
const READ_FIXED: u8 = 4;
/// `IOSQE_FIXED_FILE`.
const REGISTERED_FILE: u8 = 1;

pub(super) fn probe(file: &File) -> Result<(), ProbeError> {
    inherited(file)?;
    registered_files(file)?;
    registered_buffers(file)?;
    unmapped_meanwhile()?;
    for flags in [0, SUBMITS_ITSELF] {
        for is_killed in [false, true] {
            exits_meanwhile(flags, is_killed)?;
        }
    }
    println!("exits meanwhile");
    Ok(())
}

/// A child uses the rings that it has inherited.
fn inherited(file: &File) -> Result<(), ProbeError> {
    let ring = Ring::new(8, 0, 0).named("io_uring_setup")?;
    fresh()?;
    let child = in_a_child(|| {
        let ended = ring.run(transfer(READ, file, BUFFERS, (4, 2)));
        let is_read = ended.is_ok_and(|ended| ended.result == 2 * PAGE as i32);
        if !is_read || read(BUFFERS, 1) != 5 * PAGE / 8 {
            std::process::abort();
        }
    })?;
    println!("inherited: {}", matches!(child, WaitStatus::Exited(_, 0)));
    let ended = ring
        .run(transfer(READ, file, BUFFERS, (6, 1)))
        .named("READ")?;
    println!("{}, {}", ended.result, read(BUFFERS, 0));
    Ok(())
}

fn registered_files(file: &File) -> Result<(), ProbeError> {
    let ring = Ring::new(8, 0, 0).named("io_uring_setup")?;
    let files = [file.as_raw_fd()];
    let at = files.as_ptr().expose_provenance() as u64;
    println!("files: {:?}", ring.register(REGISTER_FILES, at, 1));
    fresh()?;
    let mut request = transfer(READ, file, BUFFERS, (2, 1));
    (request.file, request.flags) = (0, REGISTERED_FILE | BY_WORKER);
    println!(
        "{}, {}",
        ring.run(request).named("READ")?.result,
        read(BUFFERS, 0)
    );
    Ok(())
}

/// Buffers that are pinned for long work, or are refused as memory of a file is.
fn registered_buffers(file: &File) -> Result<(), ProbeError> {
    let ring = Ring::new(8, 0, 0).named("io_uring_setup")?;
    fresh()?;
    (0..PAGES).for_each(|page| write(BUFFERS, page, 1));
    let vector = [BUFFERS, PAGES * PAGE];
    let at = vector.as_ptr().expose_provenance() as u64;
    match ring.register(REGISTER_BUFFERS, at, 1) {
        Ok(_) => {
            let request = Request {
                operation: READ_FIXED,
                ..transfer(READ, file, BUFFERS, (3, 1))
            };
            let ended = ring.run(request).named("READ_FIXED")?;
            if ended.result != PAGE as i32 || read(BUFFERS, 0) != 3 * PAGE / 8 {
                return Err(ProbeError::Wrong(format!("a registered buffer: {ended:?}")));
            }
            ring.register(UNREGISTER_BUFFERS, 0, 0)
                .named("unregistering")?;
        }
        Err(Errno::EOPNOTSUPP) => {}
        Err(errno) => {
            return Err(ProbeError::Call {
                what: "registering buffers",
                errno,
            });
        }
    }
    println!("registered buffers, or none");
    Ok(())
}

/// The buffer of a request is unmapped before there is something to read.
fn unmapped_meanwhile() -> Result<(), ProbeError> {
    let ring = Ring::new(8, 0, 0).named("io_uring_setup")?;
    let (from, to) = pipe()?;
    fresh()?;
    ring.queue(Request {
        offset: u64::MAX,
        ..transfer(READ, &from, BUFFERS, (0, 1))
    });
    println!("submitted: {:?}", ring.enter(1, 0, 0));
    println!("unmapped: {:?}", unmap(BUFFERS, PAGES));
    send(&to, b"x")?;
    println!("without memory: {:?}", ring.wait().named("READ")?.result);
    Ok(())
}

/// A process ends, or is killed, while it has requests of every kind.
fn exits_meanwhile(flags: u32, is_killed: bool) -> Result<(), ProbeError> {
    for _ in 0..4 {
        // SAFETY: this program has one thread here.
        match unsafe { fork() }.named("fork")? {
            ForkResult::Child => {
                let is_submitted = submit_all(flags).is_ok();
                if is_killed {
                    loop {
                        std::hint::spin_loop();
                    }
                }
                // SAFETY: it ends the process, without the parent's exit handlers.
                unsafe { nix::libc::_exit(i32::from(!is_submitted)) }
            }
            ForkResult::Parent { child } => {
                if is_killed {
                    kill(child, Signal::SIGKILL).named("kill")?;
                }
                let ended = waitpid(child, None).named("waitpid")?;
                let is_right = match ended {
                    WaitStatus::Exited(_, status) => !is_killed && status == 0,
                    WaitStatus::Signaled(..) => is_killed,
                    _ => false,
                };
                if !is_right {
                    return Err(ProbeError::Wrong(format!("it ended: {ended:?}")));
                }
            }
        }
    }
    Ok(())
}

fn submit_all(flags: u32) -> Result<(), ProbeError> {
    let ring = std::mem::ManuallyDrop::new(Ring::new(8, flags, 1000).named("io_uring_setup")?);
    let (from, to) = pipe()?;
    fresh()?;
    for page in 0..4 {
        let flags = if page % 2 == 0 { 0 } else { BY_WORKER };
        let request = transfer(READ, &from, BUFFERS + page * PAGE, (0, 1));
        ring.queue(Request {
            flags,
            offset: u64::MAX,
            ..request
        });
    }
    ring.enter(4, 0, 0).named("submitting")?;
    std::mem::forget((from, to));
    Ok(())
}
