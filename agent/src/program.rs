//! Starting programs.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};

use insula_agent::restrictions::Restrictions;
use insula_agent::{Exec, ExecAs, TerminalSize};
use rustix::process::{Signal, ioctl_tiocsctty, setsid};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::stdio::stdin;
use rustix::termios::{Winsize, tcsetwinsize};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::argument::{from_word, to_word};
use crate::{restrict, user};

/// Role of this program: start a session and execute another program.
pub(crate) const EXEC: &str = "exec";
/// Whether standard input becomes the session's controlling terminal.
const TERMINAL: &str = "--terminal";
const NO_TERMINAL: &str = "--no-terminal";

/// The clocks of a container, as its processes see them.
const CLOCKS: &str = "/proc/1/ns/time";
/// This program, even if its file has been removed.
pub(crate) const SELF: &str = "/proc/self/exe";
pub(crate) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const SHELLS: [&str; 2] = ["/bin/bash", "/bin/sh"];

/// A started program and its pipes or terminal.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) child: Child,
    /// `None` if it has no standard input.
    pub(crate) stdin: Option<File>,
    /// With a terminal, all output.
    pub(crate) stdout: Option<File>,
    pub(crate) stderr: Option<File>,
    pub(crate) terminal: Option<File>,
    /// What it gets when the command has left.
    pub(crate) hangup: Signal,
    /// Who gets the signals that the command sends.
    pub(crate) signalled: Signalled,
}

/// Who gets a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signalled {
    /// The program alone.
    Program,
    /// Its process group, as by a terminal.
    Group,
}

impl Program {
    /// Starts a program. If it cannot be executed, it exits with 127 or 126, as in a shell.
    pub(crate) fn start(exec: &Exec) -> io::Result<Self> {
        let request = ExecAs {
            exec: exec.clone(),
            ..ExecAs::default()
        };
        Self::start_as(&request, None)
    }

    /// Starts a program as a user. With a `gate`, it begins when nobody has the other end of that pipe open any
    /// more, in the namespaces of the calling thread.
    pub(crate) fn start_as(request: &ExecAs, gate: Option<&OwnedFd>) -> io::Result<Self> {
        let exec = &request.exec;
        let mut command = Command::new(SELF);
        command.arg(EXEC);
        let restrictions = to_word(&request.restrictions)?;
        let user = request.user.as_deref();
        add_words(&mut command, exec, (user, &restrictions), gate);
        let directory = exec.directory.as_deref().unwrap_or(b"/");
        command.current_dir(OsStr::from_bytes(directory));
        Self::spawn(&mut command, exec)
    }

    /// Starts a program by a role of this one, which ends by [`exec`].
    pub(crate) fn start_by(
        role: &[&OsStr],
        program: &Exec,
        (user, restrictions): (Option<&str>, &Restrictions),
    ) -> io::Result<Self> {
        let mut command = Command::new(SELF);
        command.args(role).current_dir("/");
        let restrictions = to_word(restrictions)?;
        add_words(&mut command, program, (user, &restrictions), None);
        Self::spawn(&mut command, program)
    }

    fn spawn(command: &mut Command, exec: &Exec) -> io::Result<Self> {
        set_environment(command, exec);
        match &exec.terminal {
            Some(terminal) => Self::on_terminal(command, terminal.size),
            None => Self::on_pipes(command, exec.stdin),
        }
    }

    fn on_terminal(command: &mut Command, size: TerminalSize) -> io::Result<Self> {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        grantpt(&master)?;
        unlockpt(&master)?;
        resize(&master, size)?;
        let slave = ioctl_tiocgptpeer(&master, OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
        command
            .stdin(slave.try_clone()?)
            .stdout(slave.try_clone()?)
            .stderr(slave);
        Ok(Self {
            child: command.spawn()?,
            stdin: Some(master.try_clone()?.into()),
            stdout: Some(master.try_clone()?.into()),
            stderr: None,
            terminal: Some(master.into()),
            hangup: Signal::HUP,
            signalled: Signalled::Group,
        })
    }

    fn on_pipes(command: &mut Command, stdin: bool) -> io::Result<Self> {
        let input = if stdin { Stdio::piped() } else { Stdio::null() };
        command
            .stdin(input)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let file = |fd: OwnedFd| File::from(fd);
        Ok(Self {
            stdin: child.stdin.take().map(|end| file(end.into())),
            stdout: child.stdout.take().map(|end| file(end.into())),
            stderr: child.stderr.take().map(|end| file(end.into())),
            terminal: None,
            hangup: Signal::HUP,
            signalled: Signalled::Group,
            child,
        })
    }
}

/// The words that [`exec`] takes.
fn add_words(
    command: &mut Command,
    exec: &Exec,
    (user, restrictions): (Option<&str>, &OsStr),
    gate: Option<&OwnedFd>,
) {
    let role = match exec.terminal {
        Some(_) => TERMINAL,
        None => NO_TERMINAL,
    };
    command.arg(role).arg(user.unwrap_or_default());
    command.arg(restrictions);
    command.arg(gate.map_or_else(String::new, |gate| gate.as_raw_fd().to_string()));
    command.args(words(exec));
}

/// Gives a program its whole environment.
pub(crate) fn set_environment(command: &mut Command, exec: &Exec) {
    let home = if Path::new("/root").is_dir() {
        "/root"
    } else {
        "/"
    };
    command.env_clear().env("PATH", PATH).env("HOME", home);
    if let Some(terminal) = &exec.terminal {
        command.env("TERM", OsStr::from_bytes(&terminal.kind));
    }
    for (name, value) in &exec.environment {
        command.env(OsStr::from_bytes(name), OsStr::from_bytes(value));
    }
}

/// Changes the size of a terminal.
pub(crate) fn resize(terminal: impl std::os::fd::AsFd, size: TerminalSize) -> io::Result<()> {
    let size = Winsize {
        ws_row: size.rows,
        ws_col: size.columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    Ok(tcsetwinsize(terminal, size)?)
}

fn words(exec: &Exec) -> Vec<OsString> {
    let given: Vec<_> = exec
        .words
        .iter()
        .map(|word| OsStr::from_bytes(word).to_owned())
        .collect();
    if !given.is_empty() {
        return given;
    }
    let shell = SHELLS.into_iter().find(|shell| Path::new(shell).exists());
    vec![shell.unwrap_or(SHELLS[1]).into()]
}

/// Waits until a gate is open, if this program has one, and enters the clocks of the container that it is in.
fn pass(gate: &OsStr) -> io::Result<()> {
    let Some(gate) = gate.to_str().filter(|gate| !gate.is_empty()) else {
        return Ok(());
    };
    let number = gate.parse().map_err(io::Error::other)?;
    io::copy(&mut own(number), &mut io::sink())?;
    // Those of one that was moved are not its kernel's. Other kernels have no such namespaces.
    if let Ok(clocks) = File::open(CLOCKS) {
        let _ = move_into_link_name_space(clocks.as_fd(), Some(LinkNameSpaceType::Time));
    }
    Ok(())
}

#[allow(unsafe_code, reason = "it comes by its number")]
fn own(descriptor: RawFd) -> File {
    // SAFETY: who has started this program has left it open for this alone.
    unsafe { File::from_raw_fd(descriptor) }
}

/// Starts a session, with standard input as its controlling terminal if requested, and executes the
/// program as its user, with its restrictions.
pub(crate) fn exec(mut words: impl Iterator<Item = OsString>) -> ExitCode {
    let terminal = words.next().is_some_and(|word| word == TERMINAL);
    let mut next = || words.next().unwrap_or_default();
    let (user, restrictions, gate) = (next(), next(), next());
    let home = match prepare(terminal, &user, &restrictions, &gate) {
        Ok(home) => home,
        Err(error) => {
            eprintln!("insula: {error}");
            return ExitCode::from(126);
        }
    };
    let name = next();
    let mut command = Command::new(&name);
    if let Some(home) = home {
        command.env("HOME", home);
    }
    let error = command.args(words).exec();
    eprintln!("insula: {}: {error}", name.to_string_lossy());
    ExitCode::from(match error.kind() {
        io::ErrorKind::NotFound => 127,
        _ => 126,
    })
}

/// Makes this process what the program is to be; the home of its user, if it has one.
fn prepare(
    terminal: bool,
    user: &OsStr,
    restrictions: &OsStr,
    gate: &OsStr,
) -> io::Result<Option<OsString>> {
    pass(gate).map_err(failed("the container cannot be joined"))?;
    let led = setsid().and_then(|_| match terminal {
        true => ioctl_tiocsctty(stdin()),
        false => Ok(()),
    });
    led.map_err(|errno| failed("the session cannot be started")(errno.into()))?;
    let unrestricted = failed("the program cannot be restricted");
    let restrictions: Restrictions = from_word(restrictions).map_err(&unrestricted)?;
    restrict::as_root(&restrictions).map_err(&unrestricted)?;
    let user = user.to_string_lossy();
    let home = user::become_user(&user).map_err(failed(&format!("the user {user}")))?;
    restrict::as_user(&restrictions).map_err(&unrestricted)?;
    Ok(home)
}

fn failed(what: &str) -> impl Fn(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{what}: {error}"))
}
