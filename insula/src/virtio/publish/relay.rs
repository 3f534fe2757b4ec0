//! One thread that passes on all connections of a published port.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind};
use std::net::SocketAddrV4;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use mio::event::Source;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Registry, Token, Waker};
use nix::libc::linger;
use nix::sys::socket::{setsockopt, sockopt};

use super::flow::{Flow, Moved};

/// How long a node may take to accept a connection.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often connections that nobody has accepted are looked at, and a system that has no descriptors
/// left is asked for one.
const INTERVAL: Duration = Duration::from_secs(1);
/// At most one complaint of clients refused in this time.
const COMPLAINT_INTERVAL: Duration = Duration::from_secs(60);
/// Events that are taken at one time.
const EVENTS: usize = 256;

const LISTENER: Token = Token(usize::MAX);
/// The port is to be closed.
pub(super) const CLOSE: Token = Token(usize::MAX - 1);

/// How many connections there may be, of all ports that share this.
#[derive(Debug)]
pub(in super::super) struct Limit {
    max: usize,
    open: AtomicUsize,
}

impl Limit {
    /// So many at one time.
    pub(in super::super) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self {
            max,
            open: AtomicUsize::new(0),
        })
    }

    fn admit(self: &Arc<Self>) -> Option<Admission> {
        let admitted = self.open.fetch_add(1, Ordering::Relaxed) < self.max;
        // Counted back with this value, also if it is none.
        let admission = Admission(Arc::clone(self));
        admitted.then_some(admission)
    }
}

/// One connection of those there may be.
struct Admission(Arc<Limit>);

impl Drop for Admission {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A client, and the node that it is led to.
struct Connection {
    client: TcpStream,
    node: TcpStream,
    /// When it was begun, until the node has accepted it.
    waits_since: Option<Instant>,
    up: Flow,
    down: Flow,
    _admission: Admission,
}

impl Connection {
    /// Passes on what can be passed on now; whether there may be more at once.
    ///
    /// # Errors
    /// The connection is over: in order if it is an `UnexpectedEof`.
    fn pass_on(&mut self) -> io::Result<bool> {
        if self.waits_since.is_some() {
            if let Some(error) = self.node.take_error()? {
                return Err(error);
            }
            match self.node.peer_addr() {
                Ok(_) => self.waits_since = None,
                Err(error) if error.kind() == ErrorKind::NotConnected => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        let up = self.up.pass_on(&mut self.client, &mut self.node)?;
        let down = self.down.pass_on(&mut self.node, &mut self.client)?;
        match (up, down) {
            (Moved::Ended, Moved::Ended) => Err(ErrorKind::UnexpectedEof.into()),
            _ => Ok(up == Moved::More || down == Moved::More),
        }
    }
}

/// A port, and the connections that came through it.
pub(super) struct Relay {
    poll: Poll,
    listener: Option<TcpListener>,
    node: SocketAddrV4,
    limit: Arc<Limit>,
    connections: BTreeMap<usize, Connection>,
    next: usize,
    /// Told, by its end, that the port is closed.
    closed: Option<Sender<()>>,
    complain: Box<dyn Fn(&str) + Send>,
    complained: Option<Instant>,
}

impl Relay {
    /// Passes connections to the listener on to a node; `closed` goes when the port is closed.
    pub(super) fn new(
        mut listener: TcpListener,
        node: SocketAddrV4,
        limit: Arc<Limit>,
        closed: Sender<()>,
        complain: Box<dyn Fn(&str) + Send>,
    ) -> io::Result<(Self, Waker)> {
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), CLOSE)?;
        listener.register(poll.registry(), LISTENER, Interest::READABLE)?;
        let relay = Self {
            poll,
            listener: Some(listener),
            node,
            limit,
            connections: BTreeMap::new(),
            next: 0,
            closed: Some(closed),
            complain,
            complained: None,
        };
        Ok((relay, waker))
    }

    /// Until the port is closed and all connections have ended.
    pub(super) fn run(mut self) {
        let mut events = Events::with_capacity(EVENTS);
        let mut ready = VecDeque::new();
        while self.listener.is_some() || !self.connections.is_empty() {
            let wait = match ready.is_empty() {
                true => INTERVAL,
                false => Duration::ZERO,
            };
            // A signal is as good as a moment passed.
            let _ = self.poll.poll(&mut events, Some(wait));
            let mut is_moment = events.is_empty();
            for event in &events {
                match event.token() {
                    CLOSE => self.close(),
                    LISTENER => is_moment = true,
                    Token(number) => ready.push_back(number / 2),
                }
            }
            if is_moment {
                ready.extend(self.accept());
                self.drop_unaccepted();
            }
            // Each once: those that have more to pass on wait for the others.
            for _ in 0..ready.len() {
                if let Some(number) = ready.pop_front()
                    && self.attend(number)
                {
                    ready.push_back(number);
                }
            }
        }
    }

    fn close(&mut self) {
        self.listener = None;
        self.closed = None;
    }

    /// Takes all clients there are; answers the numbers of those that are led to the node.
    fn accept(&mut self) -> Vec<usize> {
        let mut begun = Vec::new();
        loop {
            let accepted = self.listener.as_ref().map(TcpListener::accept);
            match accepted {
                Some(Ok((client, _))) => begun.extend(self.lead(client)),
                Some(Err(error)) if error.kind() == ErrorKind::Interrupted => {}
                Some(Err(error)) if error.kind() == ErrorKind::ConnectionAborted => {}
                Some(Err(error)) if error.kind() != ErrorKind::WouldBlock => {
                    // The client waits; it is looked at again in a moment.
                    self.complain(&error.to_string());
                    return begun;
                }
                _ => return begun,
            }
        }
    }

    fn lead(&mut self, client: TcpStream) -> Option<usize> {
        let Some(admission) = self.limit.admit() else {
            let text = format!("there are {} connections already", self.limit.max);
            self.complain(&text);
            refuse(client);
            return None;
        };
        let number = self.next;
        let registry = self.poll.registry();
        match begin(client, self.node, admission, registry, number) {
            Ok(connection) => {
                self.next += 1;
                self.connections.insert(number, connection);
                Some(number)
            }
            Err(error) => {
                self.complain(&error.to_string());
                None
            }
        }
    }

    /// Passes on what a connection has; whether it may have more at once.
    fn attend(&mut self, number: usize) -> bool {
        let passed_on = match self.connections.get_mut(&number) {
            Some(connection) => connection.pass_on(),
            None => return false,
        };
        passed_on.unwrap_or_else(|error| {
            let connection = self.connections.remove(&number);
            if let Some(connection) = connection
                && error.kind() != ErrorKind::UnexpectedEof
            {
                refuse(connection.client);
            }
            false
        })
    }

    /// Of a node that does not answer its clients are to hear.
    fn drop_unaccepted(&mut self) {
        let is_late = |_: &usize, one: &mut Connection| {
            one.waits_since
                .is_some_and(|since| since.elapsed() > PATIENCE)
        };
        for (_, late) in self.connections.extract_if(.., is_late) {
            refuse(late.client);
        }
    }

    fn complain(&mut self, why: &str) {
        let is_due = |told: Instant| told.elapsed() > COMPLAINT_INTERVAL;
        if self.complained.is_none_or(is_due) {
            (self.complain)(&format!("clients are refused: {why}"));
            self.complained = Some(Instant::now());
        }
    }
}

fn begin(
    mut client: TcpStream,
    node: SocketAddrV4,
    admission: Admission,
    registry: &Registry,
    number: usize,
) -> io::Result<Connection> {
    let both = Interest::READABLE | Interest::WRITABLE;
    let mut node = TcpStream::connect(node.into())?;
    client.register(registry, Token(number * 2), both)?;
    node.register(registry, Token(number * 2 + 1), both)?;
    client.set_nodelay(true)?;
    node.set_nodelay(true)?;
    Ok(Connection {
        client,
        node,
        waits_since: Some(Instant::now()),
        up: Flow::default(),
        down: Flow::default(),
        _admission: admission,
    })
}

/// Has the client see at once that it is not served: its connection is reset.
fn refuse(client: TcpStream) {
    let at_once = linger {
        l_onoff: 1,
        l_linger: 0,
    };
    // Else it is closed in order, which it sees as well.
    let _ = setsockopt(&client.as_fd(), sockopt::Linger, &at_once);
}
