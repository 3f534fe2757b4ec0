//! Programs of the base on nodes of the lightweight kernel.
//!
//! This process becomes the program's proxy (`insula_proxy`): it keeps its process id, descriptors,
//! directory, terminal and credentials, and executes the program's delegated system calls with
//! them. Here it only finds the program's file and prepares its arguments and environment; the
//! node's kernel opens and loads the file.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use insula_driver::name::Name;
use insula_driver::{CallError, Driver, Mirror, Node, ProxyError, ProxyRegion, ProxyStart};
use insula_node::{self as node, FindError};
use nix::errno::Errno;

/// Default number of polls for a call before a proxy sleeps: they take about as long as waking it.
pub const POLLS: u64 = 2000;

/// Time from a node's start within which its kernel must accept programs.
const READY_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval between attempts.
const INTERVAL: Duration = Duration::from_millis(2);

/// A program to run.
#[derive(Clone, Copy, Debug)]
pub struct ProgramRequest<'a> {
    /// The node.
    pub node: &'a Name,
    /// The program's path, or a name to be found in `PATH`, then its arguments.
    pub words: &'a [OsString],
    /// Environment variables to set, as names and values, in addition to this process's.
    pub environment: &'a [(OsString, OsString)],
    /// Working directory of the program, and of its path if that is relative; by default this
    /// process's.
    pub directory: Option<&'a OsStr>,
    /// Polls for a call before the proxy sleeps.
    pub polls: u64,
}

/// Why a program was not started. The node is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// No node has that name.
    #[error(transparent)]
    Node(#[from] FindError),
    /// No such program.
    #[error("the program '{}' was not found; nothing was started", .0.display())]
    NotFound(PathBuf),
    /// The file is not executable, or not by this user.
    #[error("'{}' cannot be executed: {source}; nothing was started", path.display())]
    NotExecutable {
        /// Its path.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The working directory cannot be entered.
    #[error("cannot change to the directory '{}': {source}; nothing was started", path.display())]
    Directory {
        /// Its path.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The node has another kernel.
    #[error(
        "the node '{0}' does not run the lightweight kernel; nothing was started\n\
         start one that runs the base's programs with `insula run --image lwk`"
    )]
    OtherKernel(Name),
    /// It is not running.
    #[error(
        "the node '{0}' is not running; nothing was started\n\
         start it with `insula restart {0}`"
    )]
    NotRunning(Name),
    /// Its kernel did not accept programs in time.
    #[error(
        "the kernel of the node '{0}' does not accept programs; nothing was started\n\
         `insula logs {0}` shows how far it has come"
    )]
    NotReady(Name),
    /// Its delegation area is full.
    #[error(
        "the node '{0}' cannot run more programs; nothing was started\n\
         wait until one has exited"
    )]
    Full(Name),
    /// The module failed.
    #[error("the module failed: {0}; nothing was started")]
    Call(#[from] CallError),
    /// The process could not become a proxy.
    #[error("the program's proxy could not be set up: {0}; nothing was started")]
    Proxy(#[from] ProxyError),
}

/// Runs a program on a node and replaces this process by its proxy, which exits with the program's
/// status. The process must be single-threaded. On failure it may have changed to the program's
/// directory.
///
/// # Errors
/// [`ExecError`].
pub fn exec(driver: &Driver, request: &ProgramRequest) -> Result<Infallible, ExecError> {
    if let Some(directory) = request.directory {
        enter(Path::new(directory))?;
    }
    let (path, executable) = resolve(request.words)?;
    let environment = environment(std::env::vars_os(), request.environment);
    let arguments = arguments(&path, request.words, environment.into_iter());
    let node = node::find(driver, request.node)?.node;
    let region = ProxyRegion::reserve(arguments.len())?;
    let mirror = create_mirror(&node, &region, request.node)?;
    drop(node);
    let start = ProxyStart {
        arguments: &arguments,
        executable: Some(executable.into()),
        polls: request.polls,
    };
    Ok(mirror.become_proxy(region, start)?)
}

fn enter(directory: &Path) -> Result<(), ExecError> {
    std::env::set_current_dir(directory).map_err(|source| ExecError::Directory {
        path: directory.to_owned(),
        source,
    })
}

/// The environment of this process, with the variables to set.
fn environment(
    own: impl Iterator<Item = (OsString, OsString)>,
    set: &[(OsString, OsString)],
) -> BTreeMap<OsString, OsString> {
    own.chain(set.iter().cloned()).collect()
}

/// Finds and opens the file of a program, by its command line.
///
/// # Errors
/// [`ExecError::NotFound`], [`ExecError::NotExecutable`].
pub fn resolve(words: &[OsString]) -> Result<(PathBuf, File), ExecError> {
    let name = words.first().map(OsString::as_os_str).unwrap_or_default();
    let path = find(name, std::env::var_os("PATH").as_deref())?;
    let executable = check(&path)?;
    Ok((path, executable))
}

/// Creates a mirror on a node whose kernel may still be booting.
fn create_mirror(node: &Node, region: &ProxyRegion, name: &Name) -> Result<Mirror, ExecError> {
    let start = Instant::now();
    loop {
        let error = match node.create_mirror(region.program()) {
            Ok(mirror) => return Ok(mirror),
            Err(error) => error,
        };
        let name = name.clone();
        return Err(match error.errno {
            Errno::EAGAIN if start.elapsed() < READY_TIMEOUT => {
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

/// Finds a program's file as a shell does.
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

/// Refuses what Linux would refuse to execute. The program's format is left to its kernel.
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

/// Encodes the block that `INSULA_LWK_ARGUMENTS` returns (`insula_lwk.h`).
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
    fn set_variables_replace_inherited_ones() {
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
    fn arguments_are_strings_with_their_counts() {
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
