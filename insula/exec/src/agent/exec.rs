//! Running a program in a Linux node, or in a container.

use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use insula_agent::frame::{self, FrameError, Reader};
use insula_agent::pod::{OwnNamespaces, PodContainer, Share};
use insula_agent::restrictions::Restrictions;
use insula_agent::view::View;
use insula_agent::{Exec, ExecAs, ExitStatus, Request, Terminal};
use insula_base::error::Error;
use insula_driver::Driver;
use insula_driver::name::Name;

use super::detach::DetachKeys;
use super::location::Location;
use super::session::{Session, SessionEnd};
use super::terminal;

/// Time that an agent has to start a program that it is not to wait for.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A program to run.
#[derive(Clone, Debug)]
pub struct AgentExec<'a> {
    /// Where.
    pub at: &'a Location,
    /// The container there that it joins, if it does.
    pub container: Option<&'a Name>,
    /// The container that begins with it, if one does.
    pub begins: Option<Begins<'a>>,
    /// Its user, and group, as `USER[:GROUP[,GROUP]...]`; root if nothing is said.
    pub user: Option<&'a str>,
    /// What it is restricted by, if it is.
    pub restrictions: Option<&'a Restrictions>,
    /// Its path in the node, or its name in `PATH` there, then its arguments; empty for a shell.
    pub words: &'a [OsString],
    /// Additional environment variables.
    pub environment: &'a [(OsString, OsString)],
    /// Its working directory, `/` by default.
    pub directory: Option<OsString>,
    /// Whether this process's standard input is forwarded; otherwise it is empty.
    pub interactive: bool,
    /// Whether it gets a terminal.
    pub terminal: bool,
    /// Keys that detach from that terminal.
    pub detach_keys: DetachKeys,
    /// Where a byte is written when it has been started, or has failed to.
    pub started: Option<&'a File>,
}

/// A container that begins with a program, and ends with it.
#[derive(Clone, Debug)]
pub struct Begins<'a> {
    /// Its name in its node.
    pub name: &'a Name,
    /// Name of its root in the node's [`ROOTS`](insula_agent::pod::ROOTS); empty for the node's root.
    pub root: &'a str,
    /// Namespaces of its own.
    pub own: &'a OwnNamespaces,
    /// What it sees of the node's kernel.
    pub view: &'a View,
    /// How much of the node it gets.
    pub share: Share,
}

/// Runs a program, forwarding input, output and signals, until it has ended.
///
/// # Errors
/// When it cannot be started, or its exit status is not known.
pub fn exec(driver: &Driver, request: &AgentExec<'_>) -> Result<ExitStatus, Error> {
    let session = Session {
        at: request.at,
        interactive: request.interactive,
        terminal: request.terminal,
        detach_keys: &request.detach_keys,
        forwards_signals: true,
        started: request.started,
        refusal: "cannot start the program",
        left_alone: "the program there gets SIGHUP",
    };
    let stream = request.at.connect(driver)?;
    match session.run(stream, &request.for_agent())? {
        SessionEnd::Ended(status) => Ok(status),
        SessionEnd::Detached => {
            let what = format!("detached from the program in {}", request.at.kernel());
            Err(Error::new(what).leaving("it gets SIGHUP"))
        }
        SessionEnd::Disconnected => Err(disconnected(request.at)),
    }
}

/// Starts a program that goes on without this process. It has no input, and its output goes to its node's log.
///
/// # Errors
/// When it cannot be started.
pub fn start(driver: &Driver, request: &AgentExec<'_>) -> Result<(), Error> {
    let stream = request.at.connect(driver)?;
    let asked = || -> Result<Option<Result<(), String>>, FrameError> {
        stream.set_read_timeout(Some(START_TIMEOUT))?;
        frame::write(&stream, &Request::Detached(request.as_any()))?;
        Reader::new(&stream).read()
    };
    let kernel = request.at.kernel();
    match asked() {
        Ok(Some(Ok(()))) => Ok(()),
        Ok(Some(Err(why))) => {
            let what = format!("{kernel} cannot start the program");
            Err(Error::new(what).because(why.escape_debug().to_string()))
        }
        Ok(None) => Err(Error::new(format!(
            "{kernel} does not start programs without a command"
        ))
        .hint("build its image again: its agent is of an older Insula")),
        Err(error) => {
            let what = format!("{kernel} does not tell whether the program was started");
            Err(Error::new(what).because(error))
        }
    }
}

impl AgentExec<'_> {
    fn for_agent(&self) -> Request {
        let exec = self.program();
        if let Some(begins) = &self.begins {
            return Request::Pod(Box::new(PodContainer {
                name: begins.name.to_string(),
                root: begins.root.to_owned(),
                exec,
                user: self.user.map(str::to_owned),
                own: begins.own.clone(),
                restrictions: self.restrictions.cloned().unwrap_or_default(),
                view: begins.view.clone(),
                share: begins.share,
            }));
        }
        match (self.container, self.user) {
            // Which agents of older images know.
            (None, None) if self.restrictions.is_none() => Request::Exec(exec),
            _ => Request::ExecAs(self.as_any()),
        }
    }

    /// A program of whatever user and container.
    fn as_any(&self) -> ExecAs {
        ExecAs {
            exec: self.program(),
            container: self.container.map(ToString::to_string),
            user: self.user.map(str::to_owned),
            restrictions: self.restrictions.cloned().unwrap_or_default(),
        }
    }

    fn program(&self) -> Exec {
        let bytes = |text: &OsString| text.clone().into_vec();
        let environment = self.environment.iter();
        Exec {
            words: self.words.iter().map(bytes).collect(),
            environment: environment
                .map(|(name, value)| (bytes(name), bytes(value)))
                .collect(),
            directory: self.directory.as_ref().map(bytes),
            stdin: self.interactive,
            terminal: self.terminal.then(|| Terminal {
                kind: env::var_os("TERM")
                    .unwrap_or_else(|| "dumb".into())
                    .into_vec(),
                size: terminal::size(),
            }),
        }
    }
}

/// The error for a node, or an agent, that has ended.
pub(super) fn disconnected(at: &Location) -> Error {
    let kernel = at.kernel();
    let what = format!("{kernel} closed the connection before the program ended");
    Error::new(what).hint("`insula ps -a` shows its state")
}
