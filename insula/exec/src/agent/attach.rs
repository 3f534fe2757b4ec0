//! Attaching to the main program of a Linux node.

use std::thread::sleep;
use std::time::{Duration, Instant};

use insula_abi::Reason;
use insula_agent::{Attach, ExitStatus, Request};
use insula_base::error::{Error, Kind};
use insula_driver::Driver;
use insula_driver::name::Name;
use insula_node as node;

use super::detach::DetachKeys;
use super::exec::disconnected;
use super::location::Location;
use super::session::{Session, SessionEnd};

/// Time until the end of a node is seen that has closed the connection.
const END_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval at which that is looked for.
const INTERVAL: Duration = Duration::from_millis(20);

/// A program to attach to.
#[derive(Clone, Debug)]
pub struct AgentAttach<'a> {
    /// Its node.
    pub node: &'a Name,
    /// Whether this process's standard input is forwarded, if the program has one.
    pub interactive: bool,
    /// Whether the program has a terminal.
    pub terminal: bool,
    /// Keys that detach from that terminal.
    pub detach_keys: DetachKeys,
    /// Whether signals to this process are forwarded.
    pub forwards_signals: bool,
}

/// How it has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachEnd {
    /// With the program.
    Ended(ExitStatus),
    /// By its user; the program goes on.
    Detached,
    /// With the node, for this reason.
    NodeEnded(Reason),
}

/// Attaches to a program, forwarding input, output and signals, until it has ended.
///
/// # Errors
/// When the node does not run, or the connection fails.
pub fn attach(driver: &Driver, request: &AgentAttach<'_>) -> Result<AttachEnd, Error> {
    let at = Location::Node(request.node.clone());
    let session = Session {
        started: None,
        at: &at,
        interactive: request.interactive,
        terminal: request.terminal,
        detach_keys: &request.detach_keys,
        forwards_signals: request.forwards_signals,
        refusal: "cannot attach to a program",
        left_alone: "the program there goes on",
    };
    let stream = at.connect(driver)?;
    let stdin = request.interactive;
    let ended = session.run(stream, &Request::Attach(Attach { stdin }));
    match ended {
        Ok(SessionEnd::Ended(status)) => return Ok(AttachEnd::Ended(status)),
        Ok(SessionEnd::Detached) => return Ok(AttachEnd::Detached),
        Err(error) if error.kind == Kind::Output => return Err(error),
        _ => {}
    }
    // A node that ends by force closes the connection, in order or not.
    match end_of(driver, request.node) {
        Some(reason) => Ok(AttachEnd::NodeEnded(reason)),
        None => {
            ended?;
            let hint = "if its image was built by an older version, `insula image build` makes one whose \
                        programs can be attached to";
            Err(disconnected(&at).hint(hint))
        }
    }
}

/// Why a node has ended, if it soon has.
fn end_of(driver: &Driver, name: &Name) -> Option<Reason> {
    let began = Instant::now();
    loop {
        match node::find(driver, name) {
            Ok(handle) if handle.is_stopped() => return Some(handle.info.reason),
            Ok(_) if began.elapsed() < END_TIMEOUT => sleep(INTERVAL),
            Err(error) if error.kind == Kind::NoNode => return Some(Reason::KILLED),
            _ => return None,
        }
    }
}
