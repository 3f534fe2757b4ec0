//! Starting programs.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};

use insula_agent::{Exec, TerminalSize};
use rustix::process::{ioctl_tiocsctty, setsid};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::stdio::stdin;
use rustix::termios::{Winsize, tcsetwinsize};

/// Role of this program: start a session and execute another program.
pub(crate) const EXEC: &str = "exec";
/// Whether standard input becomes the session's controlling terminal.
const TERMINAL: &str = "--terminal";
const NO_TERMINAL: &str = "--no-terminal";

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
}

impl Program {
    /// Starts a program. If it cannot be executed, it exits with 127 or 126, as in a shell.
    pub(crate) fn start(exec: &Exec) -> io::Result<Self> {
        let mut command = Command::new(SELF);
        let role = match exec.terminal {
            Some(_) => TERMINAL,
            None => NO_TERMINAL,
        };
        command.arg(EXEC).arg(role).args(words(exec));
        set_environment(&mut command, exec);
        let directory = exec.directory.as_deref().unwrap_or(b"/");
        command.current_dir(OsStr::from_bytes(directory));
        match &exec.terminal {
            Some(terminal) => Self::on_terminal(&mut command, terminal.size),
            None => Self::on_pipes(&mut command, exec.stdin),
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
            child,
        })
    }
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

/// Starts a session, with standard input as its controlling terminal if requested, and executes the
/// program.
pub(crate) fn exec(mut words: impl Iterator<Item = OsString>) -> ExitCode {
    let terminal = words.next().is_some_and(|word| word == TERMINAL);
    let led = setsid().and_then(|_| match terminal {
        true => ioctl_tiocsctty(stdin()),
        false => Ok(()),
    });
    if let Err(error) = led {
        eprintln!("insula: the session cannot be started: {error}");
        return ExitCode::from(126);
    }
    let name = words.next().unwrap_or_default();
    let error = Command::new(&name).args(words).exec();
    eprintln!("insula: {}: {error}", name.to_string_lossy());
    ExitCode::from(match error.kind() {
        io::ErrorKind::NotFound => 127,
        _ => 126,
    })
}
