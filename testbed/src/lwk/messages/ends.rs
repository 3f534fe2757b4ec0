//! Ends: of time, of handles, of either side.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use insula_server::{Call, Client, Endpoint, Error};
use nix::libc;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, kill, sigaction};

use crate::lwk::messages::processes::{Process, ask, failed, open, operation, until};
use crate::lwk::messages::{equal, wrong};
use crate::lwk::{Named, ProbeError, shared};

const NAME: &str = "ends";
/// Longer than any test.
const LONG_MS: u64 = 1_000_000;

fn patient(operation: u32, word: u64, timeout: Duration) -> Call<'static> {
    Call {
        operation,
        words: [word, 0, 0, 0, 0, 0],
        timeout: Some(timeout),
        ..Call::default()
    }
}

/// A request that is served too slowly, and one that nobody receives.
pub(super) fn of_time() -> Result<(), ProbeError> {
    const TIMEOUT: Duration = Duration::from_millis(50);
    let timed_out = |client: &Client| {
        let began = Instant::now();
        let found = client.call(patient(operation::SLEEP, LONG_MS, TIMEOUT));
        equal("a slow server", &found, &Err(Error::TimedOut))?;
        match began.elapsed() >= TIMEOUT {
            true => Ok(()),
            false => wrong("a timeout ended too early"),
        }
    };
    let server = Process::server(NAME, None)?;
    let client = open(NAME)?;
    timed_out(&client)?;
    timed_out(&client)?;
    drop(server);
    // It never receives.
    let endpoint = Endpoint::create(NAME).map_err(failed)?;
    timed_out(&open(NAME)?)?;
    let found = endpoint.serve(&mut NoHandler, Some(TIMEOUT));
    equal("a request taken back", &found, &Error::TimedOut)
}

struct NoHandler;

impl insula_server::Handler for NoHandler {
    fn handle<'a>(&'a mut self, request: &insula_server::Request<'_>) -> insula_server::Reply<'a> {
        panic!("nobody asks: {request:?}")
    }
}

/// A name has one server; children have no handles; names go with the last handle.
pub(super) fn of_handles() -> Result<(), ProbeError> {
    equal(
        "no server",
        &Client::open(NAME).err(),
        &Some(Error::NoServer),
    )?;
    let endpoint = Endpoint::create(NAME).map_err(failed)?;
    equal(
        "a second one",
        &Endpoint::create(NAME).err(),
        &Some(Error::NameTaken),
    )?;
    let client = open(NAME)?;
    Process::start(move || {
        let found = client.call(Call::default());
        let closed = Error::Other(nix::errno::Errno::EBADF);
        equal("a handle of the parent", &found, &Err(closed))?;
        // Its handles are not this process's to close.
        std::mem::forget((client, endpoint));
        Ok(())
    })?
    .succeeds()?;
    for name in ["", "with/slash", &"x".repeat(65)] {
        let invalid = Error::Other(nix::errno::Errno::EINVAL);
        equal("a bad name", &Endpoint::create(name).err(), &Some(invalid))?;
    }
    let many: Result<Vec<Endpoint>, Error> = (0..400)
        .map(|index| Endpoint::create(&format!("many-{index}")))
        .collect();
    let full = Error::Other(nix::errno::Errno::EMFILE);
    equal("too many", &many.err(), &Some(full))?;
    Endpoint::create(NAME).map(drop).map_err(failed)
}

/// Who is served gets an error, who waits is served by the next server.
pub(super) fn of_a_server() -> Result<(), ProbeError> {
    let first = Process::server(NAME, None)?;
    let words = shared::words(2)?;
    let (sent, ended) = (&words[0], &words[1]);
    let served = Process::start(move || {
        let client = open(NAME)?;
        sent.fetch_add(1, Ordering::SeqCst);
        let found = ask(&client, operation::SLEEP, LONG_MS);
        equal("its server's end", &found, &Err(Error::ServerGone))?;
        ended.fetch_add(1, Ordering::SeqCst);
        Ok(())
    })?;
    let is_sent = |count: u64| {
        until("a request", || {
            Ok((sent.load(Ordering::SeqCst) >= count).then_some(()))
        })?;
        std::thread::sleep(Duration::from_millis(30));
        Ok::<_, ProbeError>(())
    };
    is_sent(1)?;
    let waiting = Process::start(move || {
        let client = open(NAME)?;
        sent.fetch_add(1, Ordering::SeqCst);
        let found = ask(&client, operation::COUNT, 0);
        equal("the next server's answer", &found, &Ok(0))
    })?;
    is_sent(2)?;
    drop(first);
    served.succeeds()?;
    let _second = Process::server(NAME, None)?;
    waiting.succeeds()
}

/// A client that is killed while it is served; the server goes on.
pub(super) fn of_a_client() -> Result<(), ProbeError> {
    let _server = Process::server(NAME, None)?;
    let sent = &shared::words(1)?[0];
    let killed = Process::start(move || {
        let client = open(NAME)?;
        sent.store(1, Ordering::SeqCst);
        ask(&client, operation::SLEEP, 100).map_err(failed)?;
        Ok(())
    })?;
    until("a request", || {
        Ok((sent.load(Ordering::SeqCst) > 0).then_some(()))
    })?;
    drop(killed);
    let count = ask(&open(NAME)?, operation::COUNT, 0).map_err(failed)?;
    match count {
        0 | 1 => Ok(()),
        more => wrong(format!("{more} requests came before")),
    }
}

extern "C" fn ignore(_: libc::c_int) {}

/// A signal with a handler ends a call; the server does not notice.
pub(super) fn by_signals() -> Result<(), ProbeError> {
    let _server = Process::server(NAME, None)?;
    let action = SigAction::new(
        SigHandler::Handler(ignore),
        SaFlags::SA_RESTART,
        SigSet::empty(),
    );
    let sent = &shared::words(1)?[0];
    let client = Process::start(move || {
        // SAFETY: the handler does nothing.
        unsafe { sigaction(Signal::SIGUSR1, &action) }.named("sigaction")?;
        let client = open(NAME)?;
        sent.store(1, Ordering::SeqCst);
        let found = ask(&client, operation::SLEEP, 100);
        equal("a call with a signal", &found, &Err(Error::Interrupted))?;
        let count = ask(&client, operation::COUNT, 0).map_err(failed)?;
        equal("requests before", &count, &1)
    })?;
    until("a request", || {
        Ok((sent.load(Ordering::SeqCst) > 0).then_some(()))
    })?;
    std::thread::sleep(Duration::from_millis(30));
    kill(client.0, Signal::SIGUSR1).named("kill")?;
    client.succeeds()
}

/// Processes of either side are killed at random moments; who is left gets an answer or an error, and
/// nothing is left in the end.
pub(super) fn at_random(kills: u64) -> Result<(), ProbeError> {
    let mut random = fastrand::Rng::with_seed(kills);
    let mut server = Process::server(NAME, None)?;
    let mut clients = Vec::new();
    for _ in 0..kills {
        while clients.len() < 3 {
            clients.push(Process::start(endless_client)?);
        }
        std::thread::sleep(Duration::from_micros(random.u64(..5000)));
        match random.u8(..2) {
            0 => {
                server = {
                    drop(server);
                    Process::server(NAME, None)?
                }
            }
            _ => drop(clients.swap_remove(random.usize(..clients.len()))),
        }
    }
    let answer = open(NAME)?.call(Call::default()).map_err(failed)?;
    equal("the last server's answer", &answer[0], &1)?;
    drop(clients);
    drop(server);
    equal(
        "what is left",
        &Client::open(NAME).err(),
        &Some(Error::NoServer),
    )
}

/// Calls until it is killed; its servers may be.
fn endless_client() -> Result<(), ProbeError> {
    let client = open(NAME)?;
    let sent = vec![0x55; 20_000];
    let mut got = vec![0; 20_000];
    loop {
        let found = client.call(Call {
            operation: operation::INVERT,
            readable: &sent,
            writable: &mut got,
            ..Call::default()
        });
        match found {
            Ok(_) if got.iter().all(|byte| *byte == 0xaa) => got.fill(0),
            Ok(_) => return wrong("wrong bytes"),
            Err(Error::ServerGone) => {}
            Err(error) => return Err(failed(error)),
        }
    }
}
