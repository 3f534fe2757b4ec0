//! Requests and replies.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use insula_abi::server::{
    MESSAGE_BATCH_MAX, MESSAGE_COPY_MAX, MESSAGE_FOREVER, Message, Reply, SYS_ENDPOINT_CLOSE,
    SYS_ENDPOINT_CREATE, SYS_MESSAGE_RECEIVE,
};
use insula_server::{Call, Client};
use nix::errno::Errno;
use nix::libc;

use crate::lwk::messages::processes::{Process, ask, failed, open, operation, stay_on, until};
use crate::lwk::messages::{equal, wrong};
use crate::lwk::{Named, ProbeError, call, shared};

const NAME: &str = "probe";
/// Clients at once, and calls of each.
const CLIENTS: u64 = 4;
const CALLS: u64 = 200;

/// Clients on the server's core and on others get the right words and bytes.
pub(super) fn are_answered() -> Result<(), ProbeError> {
    let _server = Process::server(NAME, Some(0))?;
    let client = |seed: u64| {
        Process::start(move || {
            if seed < 2 {
                stay_on(seed as usize)?;
            }
            let client = open(NAME)?;
            (0..CALLS).try_for_each(|round| is_inverted(&client, seed * CALLS + round))
        })
    };
    let clients: Vec<Process> = (0..CLIENTS).map(client).collect::<Result<_, _>>()?;
    clients.into_iter().try_for_each(Process::succeeds)?;
    let count = ask(&open(NAME)?, operation::COUNT, 0).map_err(failed)?;
    equal("requests", &count, &(CLIENTS * CALLS))
}

/// Makes a call with bytes and words that depend on a number, of a size that does, too.
fn is_inverted(client: &Client, number: u64) -> Result<(), ProbeError> {
    const SIZES: [usize; 6] = [0, 1, 255, 257, 5000, 70_000];
    let size = SIZES[number as usize % SIZES.len()];
    let sent: Vec<u8> = (0..size).map(|at| (at as u64 ^ number) as u8).collect();
    let mut got = vec![0; size];
    let words = client
        .call(Call {
            operation: match number % 2 {
                0 => operation::INVERT,
                _ => operation::INVERT_IN_PARTS,
            },
            words: std::array::from_fn(|at| number + at as u64),
            readable: &sent,
            writable: &mut got,
            timeout: None,
        })
        .map_err(failed)?;
    equal(
        "words",
        &words,
        &std::array::from_fn(|at| number + at as u64 + 1),
    )?;
    match sent.iter().zip(&got).all(|(sent, got)| *sent == !got) {
        true => Ok(()),
        false => wrong(format!("call {number}: {size} wrong bytes")),
    }
}

/// A server receives all requests that are there by one call, and replies to all by another. Too many, and
/// a reply that is too long, are refused; the requests stay.
pub(super) fn come_several_at_once() -> Result<(), ProbeError> {
    let sent = &shared::words(1)?[0];
    let arguments = [NAME.as_ptr() as u64, NAME.len() as u64, 0, 0, 0, 0];
    // SAFETY: it reads the name.
    let handle = unsafe { call(SYS_ENDPOINT_CREATE, arguments) }.named("endpoint_create")?;
    let client = |number: u64| {
        Process::start(move || {
            let client = open(NAME)?;
            sent.fetch_add(1, Ordering::SeqCst);
            let word = ask(&client, operation::COUNT, number).map_err(failed)?;
            equal("the reply", &word, &(number + 100))
        })
    };
    let clients: Vec<Process> = (0..CLIENTS).map(client).collect::<Result<_, _>>()?;
    until("all requests", || {
        Ok((sent.load(Ordering::SeqCst) == CLIENTS).then_some(()))
    })?;
    // Until they wait: the counter is the last thing before.
    std::thread::sleep(Duration::from_millis(100));
    let mut messages = [Message::default(); MESSAGE_BATCH_MAX];
    let received = receive(handle, &mut messages, &[])?;
    equal("requests received at once", &received, &CLIENTS)?;
    let reply = |message: &Message| Reply {
        request: message.request,
        words: [message.words[0] + 100, 0, 0, 0, 0, 0],
        ..Reply::default()
    };
    let replies: Vec<Reply> = messages[..received as usize].iter().map(reply).collect();
    let long = Reply {
        data_length: MESSAGE_COPY_MAX + 1,
        ..replies[0]
    };
    for bad in [vec![Reply::default(); MESSAGE_BATCH_MAX + 1], vec![long]] {
        let found = receive(handle, &mut [], &bad);
        let too_much = matches!(
            found,
            Err(ProbeError::Call {
                errno: Errno::EMSGSIZE,
                ..
            })
        );
        equal("too much is refused", &too_much, &true)?;
    }
    receive(handle, &mut [], &replies)?;
    clients.into_iter().try_for_each(Process::succeeds)?;
    // SAFETY: it touches no memory.
    let closed = unsafe { call(SYS_ENDPOINT_CLOSE, [handle, 0, 0, 0, 0, 0]) };
    closed.map(drop).named("endpoint_close")
}

/// Makes replies, then receives requests. Returns their number.
fn receive(handle: u64, to: &mut [Message], replies: &[Reply]) -> Result<u64, ProbeError> {
    let (to, count) = (to.as_mut_ptr() as u64, to.len() as u64);
    let (from, made) = (replies.as_ptr() as u64, replies.len() as u64);
    let arguments = [handle, to, count, from, made, MESSAGE_FOREVER];
    // SAFETY: the messages are borrowed exclusively, the replies too, and both are as many.
    unsafe { call(SYS_MESSAGE_RECEIVE, arguments) }.named("message_receive")
}

/// Of requests that wait, those of senders with a real-time priority are received first.
pub(super) fn urgent_ones_come_first() -> Result<(), ProbeError> {
    let _server = Process::server(NAME, None)?;
    let words = shared::words(2)?;
    let (sent, order) = (&words[0], &words[1]);
    let client = |priority: u64| {
        Process::start(move || {
            become_real_time(priority as i32)?;
            let client = open(NAME)?;
            sent.fetch_add(1, Ordering::SeqCst);
            ask(&client, operation::SLEEP, 200).map_err(failed)?;
            // One digit for each.
            let done = order.load(Ordering::SeqCst);
            order.store(done * 10 + priority, Ordering::SeqCst);
            Ok(())
        })
    };
    // The first one is received at once; while it is served the others queue.
    let mut clients = Vec::new();
    for (index, priority) in [0, 1, 3, 2].into_iter().enumerate() {
        clients.push(client(priority)?);
        until("a request", || {
            Ok((sent.load(Ordering::SeqCst) > index as u64).then_some(()))
        })?;
        // Until it waits: its counter is the last thing before.
        std::thread::sleep(Duration::from_millis(30));
    }
    clients.into_iter().try_for_each(Process::succeeds)?;
    equal("order", &order.load(Ordering::SeqCst), &321)
}

fn become_real_time(priority: i32) -> Result<(), ProbeError> {
    let parameter = libc::sched_param {
        sched_priority: priority,
    };
    let policy = match priority {
        0 => libc::SCHED_OTHER,
        _ => libc::SCHED_FIFO,
    };
    // SAFETY: it is read and not kept.
    match unsafe { libc::sched_setscheduler(0, policy, &raw const parameter) } {
        0 => Ok(()),
        _ => wrong("no real-time priority"),
    }
}

/// A client and a server that switch to each other without end leave the core to others.
pub(super) fn leave_others_their_turns() -> Result<(), ProbeError> {
    const TURNS: u64 = 20;
    const LIMIT: Duration = Duration::from_secs(60);
    let _server = Process::server(NAME, Some(0))?;
    let count = &shared::words(1)?[0];
    let _client = Process::start(|| {
        stay_on(0)?;
        let client = open(NAME)?;
        loop {
            ask(&client, operation::COUNT, 0).map_err(failed)?;
            count.fetch_add(1, Ordering::SeqCst);
        }
    })?;
    Process::start(|| {
        stay_on(0)?;
        // It has turns, and so have they between these.
        let began = Instant::now();
        for _ in 0..TURNS {
            let before = count.load(Ordering::SeqCst);
            while count.load(Ordering::SeqCst) == before {
                if began.elapsed() > LIMIT {
                    return wrong("nobody else had a turn");
                }
                std::hint::spin_loop();
            }
        }
        Ok(())
    })?
    .succeeds()
}
