//! io_uring: requests whose buffers are absent or copied on write, executed by the call, by workers,
//! by the kernel's own thread, or when something happens while the program computes.

mod lasting;
mod ring;

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;

use nix::libc;
use nix::sys::wait::WaitStatus;

use self::ring::{GET_EVENTS, Request, Ring, make};
use super::memory::mappings::{PAGE, PRIVATE, map, read, unmap, write};
use super::memory::shared_files::unnamed;
use crate::lwk::{Named, ProbeError, in_a_child};

/// Operations.
const NOP: u8 = 0;
const FSYNC: u8 = 3;
const POLL_ADD: u8 = 6;
const TIMEOUT: u8 = 11;
const CANCEL: u8 = 14;
const OPENAT: u8 = 18;
const STATX: u8 = 21;
const READ: u8 = 22;
const WRITE: u8 = 23;
const RECEIVE: u8 = 27;
const PROVIDE_BUFFERS: u8 = 31;
/// Flags of a request: it is executed by a worker; it takes a provided buffer.
const BY_WORKER: u8 = 1 << 4;
const TAKES_BUFFER: u8 = 1 << 5;
/// Flags of a ring.
const SUBMITS_ITSELF: u32 = 1 << 1;
const COOPERATES: u32 = 1 << 8;
const SINGLE: u32 = 1 << 12;
const DEFERS: u32 = 1 << 13;

/// Memory that is mapped anew for each buffer.
const BUFFERS: u64 = 0x60_0000_0000;
const PAGES: u64 = 64;

pub(crate) fn probe() -> Result<(), ProbeError> {
    let file = unnamed("/var/tmp")?;
    let words: Vec<u8> = (0..PAGES * PAGE / 8).flat_map(u64::to_ne_bytes).collect();
    file.write_all_at(&words, 0)
        .map_err(|error| ProbeError::Wrong(error.to_string()))?;
    let idle_ms = 20;
    for (name, flags) in [
        ("plain", 0),
        ("cooperates", COOPERATES),
        ("defers", SINGLE | DEFERS),
    ] {
        println!("{name}:");
        let ring = Ring::new(8, flags, 0).named("io_uring_setup")?;
        does_nothing(&ring)?;
        for request_flags in [0, BY_WORKER] {
            transfers(&ring, &file, request_flags)?;
            opens(&ring, request_flags)?;
        }
        waits(&ring)?;
        polls(&ring)?;
        provides(&ring)?;
        times_out(&ring)?;
    }
    completes_while_computing()?;
    submits_itself(
        &Ring::new(8, SUBMITS_ITSELF, idle_ms).named("SQPOLL")?,
        &file,
    )?;
    lasting::probe(&file)
}

fn does_nothing(ring: &Ring) -> Result<(), ProbeError> {
    for data in 0..20 {
        let request = Request {
            operation: NOP,
            data,
            ..Request::default()
        };
        let ended = ring.run(request).named("NOP")?;
        if (ended.data, ended.result) != (data, 0) {
            return Err(ProbeError::Wrong(format!("{ended:?}")));
        }
    }
    println!("nothing: {:?}", ring.enter(1, 0, 0));
    Ok(())
}

/// A transfer of a file's pages from `page` on.
fn transfer(operation: u8, file: &File, at: u64, (page, pages): (u64, u64)) -> Request {
    Request {
        operation,
        file: file.as_raw_fd(),
        offset: page * PAGE,
        address: at,
        size: (pages * PAGE) as u32,
        data: at,
        ..Request::default()
    }
}

fn fresh() -> Result<(), ProbeError> {
    // None may be there.
    let _ = unmap(BUFFERS, PAGES);
    map(BUFFERS, PAGES, PRIVATE).named("mmap").map(drop)
}

/// Reads to absent memory; writes what a child shares, which then changes it.
fn transfers(ring: &Ring, file: &File, flags: u8) -> Result<(), ProbeError> {
    fresh()?;
    let request = Request {
        flags,
        ..transfer(READ, file, BUFFERS, (0, 32))
    };
    let ended = ring.run(request).named("reading")?;
    println!(
        "read: {}, {}, {}",
        ended.result,
        read(BUFFERS, 1),
        read(BUFFERS, 31)
    );
    (0..32).for_each(|page| write(BUFFERS, page, 7000 + page));
    let child = in_a_child(|| {
        let Ok(ring) = Ring::new(8, 0, 0) else {
            std::process::abort();
        };
        let request = Request {
            flags,
            ..transfer(WRITE, file, BUFFERS, (32, 8))
        };
        let is_written = ring
            .run(request)
            .is_ok_and(|ended| ended.result == 8 * PAGE as i32);
        let request = Request {
            flags,
            ..transfer(READ, file, BUFFERS + 16 * PAGE, (0, 8))
        };
        let is_read = ring
            .run(request)
            .is_ok_and(|ended| ended.result == 8 * PAGE as i32);
        let own = [read(BUFFERS, 0), read(BUFFERS, 17), read(BUFFERS, 30)];
        if !is_written || !is_read || own != [7000, PAGE / 8, 7030] {
            std::process::abort();
        }
    })?;
    println!("a child: {}", matches!(child, WaitStatus::Exited(_, 0)));
    println!("own: {:?}", [read(BUFFERS, 0), read(BUFFERS, 17)]);
    let mut word = [0; 8];
    let found = file.read_exact_at(&mut word, 33 * PAGE);
    println!("written: {:?}, {}", found.is_ok(), u64::from_ne_bytes(word));
    let sync = Request {
        operation: FSYNC,
        flags,
        file: file.as_raw_fd(),
        ..Request::default()
    };
    println!("synchronised: {:?}", ring.run(sync).named("FSYNC")?.result);
    let nowhere = Request {
        flags,
        ..transfer(READ, file, 0x70_0000_0000, (0, 1))
    };
    println!("nowhere: {}", ring.run(nowhere).named("READ")?.result);
    Ok(())
}

/// Opens a file by a path, and reads the status of files, named in several ways, to absent memory.
fn opens(ring: &Ring, flags: u8) -> Result<(), ProbeError> {
    fresh()?;
    let request = Request {
        operation: OPENAT,
        flags,
        file: libc::AT_FDCWD,
        address: c"/etc/passwd".as_ptr().expose_provenance() as u64,
        ..Request::default()
    };
    let opened = ring.run(request).named("OPENAT")?.result;
    // SAFETY: it is new, and owned by nobody else.
    let file = (opened >= 0).then(|| unsafe { File::from_raw_fd(opened) });
    println!("opened: {}", file.is_some());
    let opened = file.as_ref().map_or(libc::AT_FDCWD, AsRawFd::as_raw_fd);
    let ways = [
        (libc::AT_FDCWD, c"/etc", 0),
        (libc::AT_FDCWD, c".", 0),
        (opened, c"", libc::AT_EMPTY_PATH),
        (opened, c"", 0),
        (libc::AT_FDCWD, c"/nowhere", libc::AT_EMPTY_PATH),
    ];
    for (page, (file, path, path_flags)) in (5..).zip(ways) {
        let request = Request {
            operation: STATX,
            flags,
            file,
            address: path.as_ptr().expose_provenance() as u64,
            size: libc::STATX_BASIC_STATS,
            offset: BUFFERS + page * PAGE,
            operation_flags: path_flags as u32,
            ..Request::default()
        };
        println!(
            "status of {path:?}: {:?}, {}",
            ring.run(request).named("STATX")?.result,
            read(BUFFERS, page) != 0
        );
    }
    Ok(())
}

fn pipe() -> Result<(File, File), ProbeError> {
    let (from, to) = nix::unistd::pipe().named("pipe")?;
    Ok((from.into(), to.into()))
}

fn send(mut to: &File, bytes: &[u8]) -> Result<(), ProbeError> {
    let wrong = |error| ProbeError::Wrong(format!("a pipe: {error}"));
    to.write_all(bytes).map_err(wrong)
}

/// A read of a pipe that is empty, and its cancellation.
fn waits(ring: &Ring) -> Result<(), ProbeError> {
    fresh()?;
    let (from, to) = pipe()?;
    let request = Request {
        offset: u64::MAX,
        ..transfer(READ, &from, BUFFERS, (0, 1))
    };
    ring.queue(request);
    println!("under way: {:?}", ring.enter(1, 0, 0));
    send(&to, b"12345678")?;
    let ended = ring.wait().named("reading a pipe")?;
    println!("{}, {:x}", ended.result, read(BUFFERS, 0));
    ring.queue(request);
    println!("again: {:?}", ring.enter(1, 0, 0));
    let cancel = Request {
        operation: CANCEL,
        address: BUFFERS,
        ..Request::default()
    };
    ring.queue(cancel);
    println!("cancelled: {:?}", ring.enter(1, 2, GET_EVENTS));
    let mut results = [ring.wait().named("first")?, ring.wait().named("second")?]
        .map(|ended| (ended.data, ended.result));
    results.sort_unstable();
    println!("{results:x?}");
    Ok(())
}

/// One request, and a completion for each event.
fn polls(ring: &Ring) -> Result<(), ProbeError> {
    const MULTIPLE: u32 = 1;
    const MORE: u32 = 2;
    let event = make(libc::SYS_eventfd2, [0, 0, 0, 0, 0, 0]).named("eventfd")? as i32;
    // SAFETY: it is new, and owned by nobody else.
    let event = unsafe { File::from_raw_fd(event) };
    ring.queue(Request {
        operation: POLL_ADD,
        file: event.as_raw_fd(),
        operation_flags: libc::POLLIN as u32,
        size: MULTIPLE,
        data: 55,
        ..Request::default()
    });
    println!("polls: {:?}", ring.enter(1, 0, 0));
    for _ in 0..4 {
        send(&event, &1_u64.to_ne_bytes())?;
        let ended = ring.wait().named("POLL_ADD")?;
        println!(
            "{}, {}, {}",
            ended.data,
            ended.result,
            ended.flags & MORE != 0
        );
    }
    let cancel = Request {
        operation: CANCEL,
        address: 55,
        data: 1,
        ..Request::default()
    };
    ring.queue(cancel);
    ring.enter(1, 2, GET_EVENTS).named("CANCEL")?;
    let mut results = [ring.wait().named("first")?, ring.wait().named("second")?]
        .map(|ended| (ended.data, ended.result));
    results.sort_unstable();
    println!("{results:?}");
    Ok(())
}

/// Buffers that the kernel chooses, in absent memory.
fn provides(ring: &Ring) -> Result<(), ProbeError> {
    fresh()?;
    let provided = ring.run(Request {
        operation: PROVIDE_BUFFERS,
        file: 4,
        address: BUFFERS,
        size: (2 * PAGE) as u32,
        buffers: 3,
        ..Request::default()
    });
    println!(
        "provided: {:?}",
        provided.named("PROVIDE_BUFFERS")?.result >= 0
    );
    let mut pair = [0_i32; 2];
    let at = pair.as_mut_ptr() as u64;
    let kind = [libc::AF_UNIX as u64, libc::SOCK_STREAM as u64, 0, at, 0, 0];
    make(libc::SYS_socketpair, kind).named("socketpair")?;
    // SAFETY: both are new, and owned by nobody else.
    let [from, to] = pair.map(|fd| unsafe { File::from_raw_fd(fd) });
    for round in 0..4_u64 {
        ring.queue(Request {
            operation: RECEIVE,
            flags: TAKES_BUFFER,
            file: from.as_raw_fd(),
            size: 100,
            buffers: 3,
            ..Request::default()
        });
        ring.enter(1, 0, 0).named("RECV")?;
        send(&to, &(100 + round).to_ne_bytes())?;
        let ended = ring.wait().named("receiving")?;
        let buffer = u64::from(ended.flags >> 16);
        println!("{}, {}", ended.result, read(BUFFERS, 2 * buffer));
    }
    Ok(())
}

/// A request that times out, and calls that do.
fn times_out(ring: &Ring) -> Result<(), ProbeError> {
    const STRUCTURE: u64 = GET_EVENTS | 8;
    let time = [0_u64, 20_000_000];
    let timeout = ring.run(Request {
        operation: TIMEOUT,
        address: time.as_ptr().expose_provenance() as u64,
        size: 1,
        ..Request::default()
    });
    println!("timeout: {}", timeout.named("TIMEOUT")?.result);
    let set = 1_u64 << (libc::SIGUSR1 - 1);
    let set_at = (&raw const set).expose_provenance() as u64;
    let time_at = time.as_ptr().expose_provenance() as u64;
    for mask in [0, set_at] {
        let waiting = [mask, 8, time_at];
        let at = waiting.as_ptr().expose_provenance() as u64;
        println!("call: {:?}", ring.enter_with(0, 1, STRUCTURE, at, 24));
        println!("wrong size: {:?}", ring.enter_with(0, 1, STRUCTURE, at, 23));
    }
    println!(
        "size of a set: {:?}",
        ring.enter_with(0, 1, GET_EVENTS, set_at, 4)
    );
    Ok(())
}

/// The program enters no kernel while a request waits and completes: in absent memory.
fn completes_while_computing() -> Result<(), ProbeError> {
    let ring = Ring::new(8, 0, 0).named("io_uring_setup")?;
    for round in 0..20 {
        fresh()?;
        let (from, to) = pipe()?;
        ring.queue(Request {
            offset: u64::MAX,
            ..transfer(READ, &from, BUFFERS, (0, 1))
        });
        ring.enter(1, 0, 0).named("READ")?;
        let sender = std::thread::spawn(move || send(&to, b"12345678").is_ok());
        let ended = ring.spin();
        if ended.result != 8 || read(BUFFERS, 0) != u64::from_ne_bytes(*b"12345678") {
            return Err(ProbeError::Wrong(format!("round {round}: {ended:?}")));
        }
        if !sender.join().is_ok_and(|is_sent| is_sent) {
            return Err(ProbeError::Wrong("a thread did not write".to_owned()));
        }
    }
    println!("completes while computing");
    Ok(())
}

/// The kernel's own thread submits; it sleeps now and then.
fn submits_itself(ring: &Ring, file: &File) -> Result<(), ProbeError> {
    for round in 0..12 {
        fresh()?;
        let flags = if round % 2 == 0 { 0 } else { BY_WORKER };
        ring.queue(Request {
            flags,
            ..transfer(READ, file, BUFFERS, (round, 4))
        });
        ring.wake_up().named("waking")?;
        let ended = ring.spin();
        let found = read(BUFFERS, 3);
        if ended.result != 4 * PAGE as i32 || found != (round + 3) * PAGE / 8 {
            return Err(ProbeError::Wrong(format!(
                "round {round}: {ended:?}, {found}"
            )));
        }
        if round % 4 == 3 {
            std::thread::sleep(std::time::Duration::from_millis(60));
        }
    }
    println!("submits itself");
    Ok(())
}
