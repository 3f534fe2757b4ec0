//! What `insula-oci` has containers execute, where `insula` itself cannot be executed: with the container's files.
//!
//! `/proc/self/fd/PROGRAM NODE NAME WORD...` becomes the proxy of a program on a node of the lightweight kernel, with the
//! container's files and rights only: this program's own file is the inherited descriptor `PROGRAM`, the node, which is called
//! `NAME`, the descriptor `NODE`. The program gets neither.
//!
//! `/proc/self/fd/PROGRAM --root ROOT WORD...` executes a program whose root is the folder of the descriptor `ROOT`.

#![allow(
    unsafe_code,
    reason = "inherited descriptors are taken over by their numbers"
)]

use std::convert::Infallible;
use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use insula_base::error::{Error, Kind};
use insula_driver::Node;
use insula_exec::IN_ROOT;
use insula_exec::program::{POLLS, ProgramRequest, exec_on};
use nix::unistd::{chroot, fchdir};

fn main() -> ExitCode {
    let words: Vec<_> = env::args_os().collect();
    let is_elsewhere = words.get(1).is_some_and(|word| word == IN_ROOT);
    let Err(error) = match is_elsewhere {
        true => execute_in_root(&words),
        false => become_proxy(&words),
    };
    eprintln!("insula-proxy: {error}");
    // As a shell and podman have them.
    ExitCode::from(match error.kind {
        Kind::NoProgram => 127,
        Kind::NotExecutable => 126,
        _ => 125,
    })
}

fn become_proxy(words: &[OsString]) -> Result<Infallible, Error> {
    let [own, node, name, words @ ..] = words else {
        return Err(unexpected("the arguments of a runtime are missing"));
    };
    drop(inherited(Path::new(own).file_name().unwrap_or_default())?);
    let node = Node::from(inherited(node)?);
    let name = name.to_string_lossy().parse();
    let request = ProgramRequest {
        node: &name.map_err(|error| unexpected("the node has no name").because(error))?,
        words,
        environment: &[],
        directory: None,
        polls: POLLS,
        mounts: &[],
        network: None,
    };
    exec_on(node, &request)
}

fn execute_in_root(words: &[OsString]) -> Result<Infallible, Error> {
    let [own, _, root, program, arguments @ ..] = words else {
        return Err(unexpected("the arguments of a runtime are missing"));
    };
    drop(inherited(Path::new(own).file_name().unwrap_or_default())?);
    let root = inherited(root)?;
    let error = fchdir(&root)
        .and_then(|()| chroot("."))
        .map_err(io::Error::from)
        .err()
        .unwrap_or_else(|| {
            drop(root);
            Command::new(program).args(arguments).exec()
        });
    let program = program.display();
    Err(unexpected(&format!("{program} cannot be executed")).because(error))
}

/// A descriptor that the process that executed this one has left open, by its number.
fn inherited(number: &OsStr) -> Result<OwnedFd, Error> {
    let missing = || unexpected("a descriptor of the runtime is missing");
    let number: RawFd = number.to_string_lossy().parse().map_err(|_| missing())?;
    if number < 3 {
        return Err(missing());
    }
    std::fs::symlink_metadata(format!("/proc/self/fd/{number}"))
        .map_err(|error| missing().because(error))?;
    // SAFETY: it is open, and nothing in this process has opened it: it has opened none so far but
    // those of the standard library, which are below 3.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

fn unexpected(what: &str) -> Error {
    Error::new(what)
        .leaving("nothing was started")
        .hint("only insula-oci executes this program")
}
