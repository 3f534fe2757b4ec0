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

use insula_base::error::{Error, Kind};
use insula_driver::name::Name;
use insula_driver::{CallError, Driver, Mirror, Node, ProxyRegion, ProxyStart};
use insula_node as node;
use nix::errno::Errno;

/// Default number of polls for a call before a proxy sleeps: they take about as long as waking it.
pub const POLLS: u64 = 2000;

/// Time from a node's start within which its kernel must accept programs.
const READY_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval between attempts.
const INTERVAL: Duration = Duration::from_millis(2);

/// Where programs are sought without `PATH`, as by execvp(3).
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// What every error leaves.
const NOT_STARTED: &str = "nothing was started";

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
    /// File servers of the node below whose mount points the program has their files.
    pub mounts: &'a [Mount],
    /// Endpoint of the node's network server that has its sockets of IP; the base has them without one.
    pub network: Option<&'a str>,
}

/// A file server that a program has mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Mount point, absolute.
    pub point: PathBuf,
    /// Name of the server's endpoint.
    pub server: String,
}

/// Runs a program on a node and replaces this process by its proxy, which exits with the program's
/// status. The process must be single-threaded. On failure it may have changed to the program's
/// directory.
///
/// # Errors
/// [`Kind::NoProgram`], [`Kind::NotExecutable`], or another; nothing was started.
pub fn exec(driver: &Driver, request: &ProgramRequest) -> Result<Infallible, Error> {
    if let Some(directory) = request.directory {
        enter(Path::new(directory))?;
    }
    resolve(request.words)?;
    let handle = node::find(driver, request.node)?;
    if handle.is_paused() {
        return Err(node::is_paused(request.node));
    }
    node::keep_proxy_off_shared_core(&handle);
    exec_on(handle.node, request)
}

/// The same on a node that is open, and in this process's directory. It needs no privilege.
///
/// # Errors
/// As of [`exec`].
pub fn exec_on(node: Node, request: &ProgramRequest) -> Result<Infallible, Error> {
    let (path, executable) = resolve(request.words)?;
    let environment = environment(std::env::vars_os(), request.environment);
    let arguments = arguments(
        &path,
        request.words,
        environment.into_iter(),
        (request.mounts, request.network),
    );
    let region = ProxyRegion::reserve(arguments.len()).map_err(no_proxy)?;
    let mirror = create_mirror(&node, &region, request.node)?;
    drop(node);
    let start = ProxyStart {
        arguments: &arguments,
        executable: Some(executable.into()),
        polls: request.polls,
    };
    mirror.become_proxy(region, start).map_err(no_proxy)
}

fn enter(directory: &Path) -> Result<(), Error> {
    std::env::set_current_dir(directory).map_err(|source| {
        let what = format!("cannot change to the directory '{}'", directory.display());
        Error::new(what).because(source).leaving(NOT_STARTED)
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
/// [`Kind::NoProgram`], [`Kind::NotExecutable`].
pub fn resolve(words: &[OsString]) -> Result<(PathBuf, File), Error> {
    let name = words.first().map(OsString::as_os_str).unwrap_or_default();
    let path = find(name, std::env::var_os("PATH").as_deref())?;
    let executable = check(&path)?;
    Ok((path, executable))
}

/// Creates a mirror on a node whose kernel may still be booting.
fn create_mirror(node: &Node, region: &ProxyRegion, name: &Name) -> Result<Mirror, Error> {
    let start = Instant::now();
    loop {
        let error = match node.create_mirror(region.program()) {
            Ok(mirror) => return Ok(mirror),
            Err(error) => error,
        };
        if error.errno == Errno::EAGAIN && start.elapsed() < READY_TIMEOUT {
            std::thread::sleep(INTERVAL);
            continue;
        }
        return Err(no_mirror(name, error));
    }
}

/// The error of a mirror that could not be created on a node.
#[must_use]
pub fn no_mirror(name: &Name, error: CallError) -> Error {
    match error.errno {
        Errno::EAGAIN => not_ready(name),
        Errno::EOPNOTSUPP => other_kernel(name),
        Errno::EPIPE => not_running(name),
        Errno::ENOSPC => full(name),
        _ => Error::new("the module failed")
            .because(error)
            .leaving(NOT_STARTED),
    }
}

/// Finds a program's file as a shell does.
fn find(name: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, Error> {
    let given = Path::new(name);
    if name.as_bytes().contains(&b'/') {
        return match given.exists() {
            true => Ok(given.to_owned()),
            false => Err(not_found(given)),
        };
    }
    let path = path.unwrap_or(OsStr::new(DEFAULT_PATH));
    let folders = std::env::split_paths(path);
    let mut candidates = folders.map(|folder| folder.join(given));
    let found = candidates.find(|file| !name.is_empty() && is_program(file));
    found.ok_or_else(|| not_found(given))
}

fn is_program(file: &Path) -> bool {
    let metadata = file.metadata();
    metadata.is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

/// Refuses what Linux would refuse to execute. The program's format is left to its kernel.
fn check(path: &Path) -> Result<File, Error> {
    let refused = |source: io::Error| {
        let what = format!("'{}' cannot be executed", path.display());
        Error::of(Kind::NotExecutable, what)
            .because(source)
            .leaving(NOT_STARTED)
    };
    let may = nix::unistd::access(path, nix::unistd::AccessFlags::X_OK);
    may.map_err(|errno| refused(errno.into()))?;
    if !is_program(path) {
        return Err(refused(Errno::EACCES.into()));
    }
    File::open(path).map_err(refused)
}

fn not_found(program: &Path) -> Error {
    let what = format!("the program '{}' was not found", program.display());
    Error::of(Kind::NoProgram, what).leaving(NOT_STARTED)
}

fn not_running(node: &Name) -> Error {
    Error::new(format!("the node '{node}' is not running"))
        .leaving(NOT_STARTED)
        .hint(format!("start it with `insula restart {node}`"))
}

fn other_kernel(node: &Name) -> Error {
    let what = format!("the node '{node}' does not run the lightweight kernel");
    Error::new(what)
        .leaving(NOT_STARTED)
        .hint("start one that runs the base's programs with `insula run --image lwk`")
}

/// The error for a kernel that did not accept programs in time.
fn not_ready(node: &Name) -> Error {
    let what = format!("the kernel of the node '{node}' does not accept programs");
    Error::new(what)
        .leaving(NOT_STARTED)
        .hint(format!("`insula logs {node}` shows how far it has come"))
}

/// The error for a full delegation area.
fn full(node: &Name) -> Error {
    Error::new(format!("the node '{node}' cannot run more programs"))
        .leaving(NOT_STARTED)
        .hint("wait until one has exited")
}

/// The error of a process that could not become a proxy.
fn no_proxy(error: Error) -> Error {
    error
        .context("the program's proxy could not be set up")
        .leaving(NOT_STARTED)
}

/// Encodes the block that `INSULA_LWK_ARGUMENTS` returns (`insula_lwk.h`).
fn arguments(
    path: &Path,
    words: &[OsString],
    environment: impl Iterator<Item = (OsString, OsString)>,
    (mounts, network): (&[Mount], Option<&str>),
) -> Vec<u8> {
    let environment: Vec<_> = environment
        .map(|(name, value)| [name.into_vec(), value.into_vec()].join(&b'='))
        .collect();
    let mounts = mounts
        .iter()
        .map(|mount| (mount.point.as_os_str().as_bytes(), mount.server.as_bytes()));
    let network = network.map(|server| (&b""[..], server.as_bytes()));
    let mounts: Vec<_> = mounts
        .chain(network)
        .map(|(point, server)| [point, server].join(&b'='))
        .collect();
    let counts = [words.len(), environment.len(), mounts.len()];
    let counts = counts.map(|count| count.to_string().into_bytes());
    let words = words.iter().map(|word| word.as_bytes());
    let all = std::iter::once(path.as_os_str().as_bytes())
        .chain(counts.iter().map(Vec::as_slice))
        .chain(words)
        .chain(environment.iter().map(Vec::as_slice))
        .chain(mounts.iter().map(Vec::as_slice));
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
        let mounts = [Mount {
            point: "/data".into(),
            server: "file".into(),
        }];
        let path = Path::new("/bin/a.out");
        let servers = (&mounts[..], Some("net"));
        let block = arguments(path, &words, environment.into_iter(), servers);
        let expected =
            "/bin/a.out\x003\x002\x002\0a.out\0\0x y\0HOME=/\0EMPTY=\0/data=file\0=net\0";
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
        assert!(find(OsStr::new("sh"), None).is_ok());
        for missing in ["data", "", "other", "./program", "/nowhere/program"] {
            assert_eq!(
                found(missing).unwrap_err().kind,
                Kind::NoProgram,
                "{missing}"
            );
        }
        assert_eq!(found(data.to_str().unwrap()).unwrap(), data);
        assert!(check(&program).is_ok());
        let refused = check(folder.path()).unwrap_err();
        assert_eq!(refused.kind, Kind::NotExecutable);
    }
}
