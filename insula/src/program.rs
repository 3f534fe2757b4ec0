//! Programs of the base on nodes of the lightweight kernel.
//!
//! This process becomes the program's proxy (`insula_proxy`): it keeps its id, its descriptors,
//! directory, terminal and rights, and has them for the program, whose system calls it executes.
//! What it does itself is only to find the file and to say by which words and environment the
//! program begins; the node's kernel opens and reads it.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use insula_abi::lwk::{DelegationPlace, PAGE_SIZE};
use kimage::{Format, Loadable};
use nix::errno::Errno;

use crate::driver::{CallError, Driver, Node, ProxyError, ProxyRegion, ProxyStart, Space};
use crate::name::Name;
use crate::node::{self, FindError};

/// Pages of the delegation area of a node that runs programs: for some 80 processes, or 4000
/// threads.
pub const AREA_PAGES: u32 = 256;
/// Its bytes.
pub const AREA_SIZE: u64 = AREA_PAGES as u64 * PAGE_SIZE;
/// How often a proxy looks for a call before it sleeps, unless it is told otherwise: about as long
/// as it takes to be woken.
pub const POLLS: u64 = 2000;

/// The word on a node's command line by which it switches itself off after its last program.
pub const ONCE: &str = "once";

/// How long a node may take from its start until its kernel takes programs.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often it is asked.
const INTERVAL: Duration = Duration::from_millis(2);

/// What a node with that kernel has behind its channels for programs, in bytes.
#[must_use]
pub fn area_size(kernel: &Loadable) -> u64 {
    match kernel.format {
        Format::Lwk => AREA_SIZE,
        _ => 0,
    }
}

/// The delegation area that lies there.
#[must_use]
pub fn area_at(start: u64) -> DelegationPlace {
    DelegationPlace {
        start,
        pages: AREA_PAGES,
        reserved: 0,
    }
}

/// A program to be run.
#[derive(Clone, Copy, Debug)]
pub struct ProgramRequest<'a> {
    /// Where.
    pub node: &'a Name,
    /// Its path, or its name to be found in `PATH`, then its arguments.
    pub words: &'a [OsString],
    /// What is set in its environment beyond what this process has: names and values.
    pub environment: &'a [(OsString, OsString)],
    /// Where it begins, and its path if that is relative; none is where this process is.
    pub directory: Option<&'a OsStr>,
    /// How often its proxy looks for a call before it sleeps.
    pub polls: u64,
}

/// Why a program was not begun. The node is what it was.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// There is no such node.
    #[error(transparent)]
    Node(#[from] FindError),
    /// No such file.
    #[error("there is no program '{}'; nothing was begun", .0.display())]
    NotFound(PathBuf),
    /// A file that is no program, or not for this user.
    #[error("'{}' cannot be executed: {source}; nothing was begun", path.display())]
    NotExecutable {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It cannot begin there.
    #[error("'{}' cannot be entered: {source}; nothing was begun", path.display())]
    Directory {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is a node of another kind.
    #[error(
        "the node '{0}' has a kernel of its own, which runs programs of its own; nothing was begun\n\
         start one that runs the base's programs with `insula run --image lwk`"
    )]
    OtherKernel(Name),
    /// It does not run.
    #[error("the node '{0}' does not run; nothing was begun\nstart it with `insula restart {0}`")]
    NotRunning(Name),
    /// Its kernel has not come so far.
    #[error(
        "the kernel of node '{0}' does not take programs; nothing was begun\n\
         `insula logs {0}` shows how far it has come"
    )]
    NotReady(Name),
    /// No place for another one.
    #[error(
        "the node '{0}' runs as many programs as it can; nothing was begun\n\
         wait until one has ended"
    )]
    Full(Name),
    /// The module failed.
    #[error("the module failed: {0}; nothing was begun")]
    Call(#[from] CallError),
    /// The process could not be made a proxy.
    #[error("no proxy for the program: {0}; nothing was begun")]
    Proxy(#[from] ProxyError),
}

/// Runs a program on a node, in this process's stead: it ends as the program ends. The process
/// must have one thread only. If that fails, the process may be in the program's directory.
///
/// # Errors
/// [`ExecError`].
pub fn exec(driver: &Driver, request: &ProgramRequest) -> Result<Infallible, ExecError> {
    if let Some(directory) = request.directory {
        enter(Path::new(directory))?;
    }
    let (path, executable) = look_for(request.words)?;
    let environment = environment(std::env::vars_os(), request.environment);
    let arguments = arguments(&path, request.words, environment.into_iter());
    let node = node::find(driver, request.node)?.node;
    let region = ProxyRegion::reserve(arguments.len())?;
    let space = create_space(&node, &region, request.node)?;
    drop(node);
    let start = ProxyStart {
        arguments: &arguments,
        executable: Some(executable.into()),
        polls: request.polls,
    };
    Ok(space.become_proxy(region, start)?)
}

fn enter(directory: &Path) -> Result<(), ExecError> {
    std::env::set_current_dir(directory).map_err(|source| ExecError::Directory {
        path: directory.to_owned(),
        source,
    })
}

/// What there is, with what is to be set in its place or beside it.
fn environment(
    own: impl Iterator<Item = (OsString, OsString)>,
    set: &[(OsString, OsString)],
) -> BTreeMap<OsString, OsString> {
    own.chain(set.iter().cloned()).collect()
}

/// The file of a program that is to be run by these words, and its path.
///
/// # Errors
/// [`ExecError::NotFound`], [`ExecError::NotExecutable`].
pub fn look_for(words: &[OsString]) -> Result<(PathBuf, File), ExecError> {
    let name = words.first().map(OsString::as_os_str).unwrap_or_default();
    let path = find(name, std::env::var_os("PATH").as_deref())?;
    let executable = check(&path)?;
    Ok((path, executable))
}

/// A space on a node, whose kernel may still be booting.
fn create_space(node: &Node, region: &ProxyRegion, name: &Name) -> Result<Space, ExecError> {
    let began = Instant::now();
    loop {
        let error = match node.create_space(region.program()) {
            Ok(space) => return Ok(space),
            Err(error) => error,
        };
        let name = name.clone();
        return Err(match error.errno {
            Errno::EAGAIN if began.elapsed() < PATIENCE => {
                std::thread::sleep(INTERVAL);
                continue;
            }
            Errno::EAGAIN => ExecError::NotReady(name),
            Errno::EOPNOTSUPP => ExecError::OtherKernel(name),
            Errno::EPIPE => ExecError::NotRunning(name),
            Errno::ENOSPC => ExecError::Full(name),
            _ => error.into(),
        });
    }
}

/// The file that a name stands for, as a shell finds it.
fn find(name: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, ExecError> {
    let given = Path::new(name);
    if name.as_bytes().contains(&b'/') {
        return match given.exists() {
            true => Ok(given.to_owned()),
            false => Err(ExecError::NotFound(given.to_owned())),
        };
    }
    let folders = path.into_iter().flat_map(std::env::split_paths);
    let mut candidates = folders.map(|folder| folder.join(given));
    let found = candidates.find(|file| !name.is_empty() && is_program(file));
    found.ok_or_else(|| ExecError::NotFound(given.to_owned()))
}

fn is_program(file: &Path) -> bool {
    let metadata = file.metadata();
    metadata.is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

/// Refuses what Linux would refuse to execute. What kind of program it is its kernel finds out.
fn check(path: &Path) -> Result<File, ExecError> {
    let refused = |source| ExecError::NotExecutable {
        path: path.to_owned(),
        source,
    };
    let may = nix::unistd::access(path, nix::unistd::AccessFlags::X_OK);
    may.map_err(|errno| refused(errno.into()))?;
    if !is_program(path) {
        return Err(refused(Errno::EACCES.into()));
    }
    File::open(path).map_err(refused)
}

/// The block that `INSULA_LWK_ARGUMENTS` gives (`insula_lwk.h`).
fn arguments(
    path: &Path,
    words: &[OsString],
    environment: impl Iterator<Item = (OsString, OsString)>,
) -> Vec<u8> {
    let environment: Vec<_> = environment
        .map(|(name, value)| [name.into_vec(), value.into_vec()].join(&b'='))
        .collect();
    let counts = [words.len(), environment.len()].map(|count| count.to_string().into_bytes());
    let words = words.iter().map(|word| word.as_bytes());
    let head = [path.as_os_str().as_bytes(), &counts[0], &counts[1]];
    let all = head
        .into_iter()
        .chain(words)
        .chain(environment.iter().map(Vec::as_slice));
    all.flat_map(|text| text.iter().copied().chain([0]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_replaces_what_there_is() {
        let pairs = |list: &[(&str, &str)]| -> Vec<(OsString, OsString)> {
            list.iter()
                .map(|(name, value)| (name.into(), value.into()))
                .collect()
        };
        let own = pairs(&[("HOME", "/root"), ("TERM", "vt100")]);
        let all = environment(own.into_iter(), &pairs(&[("TERM", "dumb"), ("A", "b=c")]));
        let expected = pairs(&[("A", "b=c"), ("HOME", "/root"), ("TERM", "dumb")]);
        assert_eq!(all.into_iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn arguments_are_strings_with_their_numbers() {
        let words = ["a.out", "", "x y"].map(OsString::from);
        let environment = [("HOME".into(), "/".into()), ("EMPTY".into(), "".into())];
        let block = arguments(Path::new("/bin/a.out"), &words, environment.into_iter());
        let expected = "/bin/a.out\x003\x002\0a.out\0\0x y\0HOME=/\0EMPTY=\0";
        assert_eq!(String::from_utf8(block).unwrap(), expected);
    }

    #[test]
    fn programs_are_found_as_by_a_shell() {
        let folder = tempfile::tempdir().unwrap();
        let (data, program) = (folder.path().join("data"), folder.path().join("program"));
        for (file, mode) in [(&data, 0o644), (&program, 0o755)] {
            std::fs::write(file, "").unwrap();
            std::fs::set_permissions(file, PermissionsExt::from_mode(mode)).unwrap();
        }
        let path = std::env::join_paths([Path::new("/nowhere"), folder.path()]).unwrap();
        let found = |name: &str| find(OsStr::new(name), Some(&path));
        assert_eq!(found("program").unwrap(), program);
        for missing in ["data", "", "other", "./program", "/nowhere/program"] {
            assert!(
                matches!(found(missing), Err(ExecError::NotFound(_))),
                "{missing}"
            );
        }
        assert_eq!(found(data.to_str().unwrap()).unwrap(), data);
        assert!(check(&program).is_ok());
        assert!(matches!(
            check(folder.path()),
            Err(ExecError::NotExecutable { .. })
        ));
    }
}
