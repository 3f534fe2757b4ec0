//! One thread that forwards all connections of a published port.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind};
use std::net::SocketAddrV4;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use mio::event::Source;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Registry, Token, Waker};
use nix::libc::linger;
use nix::sys::socket::{setsockopt, sockopt};

use super::CLOSE;
use super::flow::{Flow, Progress};
use super::limit::{Admission, Limit, Reports};

/// Interval at which unaccepted connections are checked, and accept() is retried after a lack of
/// descriptors.
const INTERVAL: Duration = Duration::from_secs(1);
/// Events per poll.
const EVENTS: usize = 256;

const LISTENER: Token = Token(usize::MAX);

/// A client and its connection to the node.
struct Connection {
    client: TcpStream,
    node: TcpStream,
    /// Start of the connection to the node, until the node has accepted it.
    connecting_since: Option<Instant>,
    up: Flow,
    down: Flow,
    _admission: Admission,
}

impl Connection {
    /// Forwards available data; whether more may be available at once.
    ///
    /// # Errors
    /// The connection is over: in order for `UnexpectedEof`.
    fn forward(&mut self) -> io::Result<bool> {
        if self.connecting_since.is_some() {
            if let Some(error) = self.node.take_error()? {
                return Err(error);
            }
            match self.node.peer_addr() {
                Ok(_) => self.connecting_since = None,
                Err(error) if error.kind() == ErrorKind::NotConnected => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        let up = self.up.forward(&mut self.client, &mut self.node)?;
        let down = self.down.forward(&mut self.node, &mut self.client)?;
        match (up, down) {
            (Progress::Closed, Progress::Closed) => Err(ErrorKind::UnexpectedEof.into()),
            _ => Ok(up == Progress::More || down == Progress::More),
        }
    }
}

/// A published port and its connections.
pub(super) struct Relay {
    poll: Poll,
    listener: Option<TcpListener>,
    node: SocketAddrV4,
    limit: Arc<Limit>,
    connections: BTreeMap<usize, Connection>,
    next: usize,
    /// Dropped when the port is closed.
    closed: Option<Sender<()>>,
    reports: Reports,
}

impl Relay {
    /// Forwards connections of the listener to a node; `closed` is dropped when the port is closed.
    pub(super) fn new(
        listener: std::net::TcpListener,
        node: SocketAddrV4,
        limit: Arc<Limit>,
        closed: Sender<()>,
        reports: Reports,
    ) -> io::Result<(Self, Waker)> {
        listener.set_nonblocking(true)?;
        let mut listener = TcpListener::from_std(listener);
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
            reports,
        };
        Ok((relay, waker))
    }

    /// Runs until the port is closed and all connections have ended.
    pub(super) fn run(mut self) {
        let mut events = Events::with_capacity(EVENTS);
        let mut ready = VecDeque::new();
        while self.listener.is_some() || !self.connections.is_empty() {
            let wait = match ready.is_empty() {
                true => INTERVAL,
                false => Duration::ZERO,
            };
            // An interrupting signal counts as a timeout.
            let _ = self.poll.poll(&mut events, Some(wait));
            let mut check_clients = events.is_empty();
            for event in &events {
                match event.token() {
                    CLOSE => self.close(),
                    LISTENER => check_clients = true,
                    Token(number) => ready.push_back(number / 2),
                }
            }
            if check_clients {
                ready.extend(self.accept());
                self.drop_unaccepted();
            }
            // One round: connections with more data wait for the others.
            for _ in 0..ready.len() {
                if let Some(number) = ready.pop_front()
                    && self.forward(number)
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

    /// Accepts all waiting clients; returns the numbers of the new connections.
    fn accept(&mut self) -> Vec<usize> {
        let mut opened = Vec::new();
        loop {
            let accepted = self.listener.as_ref().map(TcpListener::accept);
            match accepted {
                Some(Ok((client, _))) => opened.extend(self.open(client)),
                Some(Err(error)) if error.kind() == ErrorKind::Interrupted => {}
                Some(Err(error)) if error.kind() == ErrorKind::ConnectionAborted => {}
                Some(Err(error)) if error.kind() != ErrorKind::WouldBlock => {
                    // The client waits; accept() is retried after the interval.
                    self.reports.tell(&error.to_string());
                    return opened;
                }
                _ => return opened,
            }
        }
    }

    fn open(&mut self, client: TcpStream) -> Option<usize> {
        let Some(admission) = self.limit.admit() else {
            self.reports.tell(&self.limit.reached());
            refuse(client);
            return None;
        };
        let number = self.next;
        let registry = self.poll.registry();
        match connect(client, self.node, admission, registry, number) {
            Ok(connection) => {
                self.next += 1;
                self.connections.insert(number, connection);
                Some(number)
            }
            Err(error) => {
                self.reports.tell(&error.to_string());
                None
            }
        }
    }

    /// Forwards the data of a connection; whether more may be available at once.
    fn forward(&mut self, number: usize) -> bool {
        let forwarded = match self.connections.get_mut(&number) {
            Some(connection) => connection.forward(),
            None => return false,
        };
        forwarded.unwrap_or_else(|error| {
            let connection = self.connections.remove(&number);
            if let Some(connection) = connection
                && error.kind() != ErrorKind::UnexpectedEof
            {
                refuse(connection.client);
            }
            false
        })
    }

    /// Resets the clients of a node that does not accept in time.
    fn drop_unaccepted(&mut self) {
        let timeout = self.limit.connect_timeout;
        let is_late = |_: &usize, one: &mut Connection| {
            one.connecting_since
                .is_some_and(|since| since.elapsed() > timeout)
        };
        for (_, late) in self.connections.extract_if(.., is_late) {
            refuse(late.client);
        }
    }
}

fn connect(
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
        connecting_since: Some(Instant::now()),
        up: Flow::default(),
        down: Flow::default(),
        _admission: admission,
    })
}

/// Resets a client's connection, so that it fails at once.
fn refuse(client: TcpStream) {
    let at_once = linger {
        l_onoff: 1,
        l_linger: 0,
    };
    // If this fails, the connection is closed in order, which ends the client's wait as well.
    let _ = setsockopt(&client.as_fd(), sockopt::Linger, &at_once);
}
