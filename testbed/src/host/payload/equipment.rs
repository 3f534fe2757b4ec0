//! Payload of every machine: the project's own programs, module and nodes' initial file system.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::module::{self, ModuleError};
use super::node_initrd::{self, NodeInitrdError};
use super::programs::{self, Programs, ProgramsError};
use super::{Content, Payload};
use crate::host::kernels::{self, FetchError, Flavour, Kernel};
use crate::host::packages::{self, PackageError};
use crate::host::project;
use crate::host::suites::{Suite, UNSTABLE};

/// Script that `make demo` runs inside.
const DEMO: &[u8] = include_bytes!("../../base/demo");
/// Lists the tasks in a core file.
const TASKS: &[u8] = include_bytes!("../../base/scenario/failure/tasks.py");
/// Path inside of the script that lists tasks.
pub const TASKS_PATH: &str = "/payload/tasks.py";
/// Path inside of the module.
pub const MODULE_PATH: &str = "/payload/insula.ko";
/// Path inside of the driver that makes faults.
pub const FAULT_PATH: &str = "/payload/insula_fault.ko";
/// Path inside of the driver that forces races.
pub const HOLD_PATH: &str = "/payload/insula_hold.ko";
/// Folder inside of the modules for nodes' kernels, with a folder for each release.
pub const MODULES_PATH: &str = "/payload/modules";
/// Path inside of the kernel that attacks its machine.
pub const HOSTILE_PATH: &str = "/payload/hostile";
/// Path inside of the nodes' initial file system.
pub const NODE_INITRD_PATH: &str = "/payload/node.cpio";
/// Path inside of the initial file system of nodes that talk to the base.
pub const PEER_INITRD_PATH: &str = "/payload/peer.cpio";

/// Path inside of CRIU, which has its libraries beside it.
pub const CRIU_PATH: &str = "/payload/criu/criu";
/// The folder with its libraries and their loader.
pub const CRIU_FOLDER: &str = "/payload/criu";
/// Folder inside of `crit`, by which CRIU's images are read, for Python.
pub const CRIT_PATH: &str = "/payload/crit";
/// Its packages, of which only Python's modules are needed.
const CRIT: [&str; 2] = ["python3-pycriu", "python3-protobuf"];
const MODULES: &str = "usr/lib/python3/dist-packages";

/// Package and path of the program that makes root images.
const MKFS_EROFS: (&str, &str) = ("erofs-utils", "usr/bin/mkfs.erofs");
/// Package and path of the program that serves folders to nodes. The package depends on much that
/// this program does not need.
const VIRTIOFSD: (&str, &str) = ("qemu-system-common", "usr/lib/qemu/virtiofsd");

/// Package and path of the program that serves disks to nodes; as above.
const STORAGE_DAEMON: (&str, &str) = ("qemu-system-common", "usr/bin/qemu-storage-daemon");

/// Failure to assemble a payload.
#[derive(Debug, thiserror::Error)]
pub enum EquipmentError {
    /// The kernel to build the module for could not be fetched.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// The module could not be built.
    #[error(transparent)]
    Module(#[from] ModuleError),
    /// A program could not be fetched.
    #[error(transparent)]
    Package(#[from] PackageError),
    /// The programs could not be built.
    #[error(transparent)]
    Programs(#[from] ProgramsError),
    /// The nodes' initial file system could not be made.
    #[error(transparent)]
    NodeInitrd(#[from] NodeInitrdError),
    /// The build folder could not be written.
    #[error("the build folder cannot be written: {0}")]
    Lock(#[from] io::Error),
}

/// Builds the payload of a machine with this base, as far as it has changed. Later calls of a process give
/// what its first one gave: to ask cargo and make again takes seconds.
///
/// # Errors
/// When a part cannot be built.
pub fn assemble(base: Flavour, progress: &mut dyn FnMut(&str)) -> Result<Payload, EquipmentError> {
    static ASSEMBLED: Mutex<BTreeMap<Flavour, Payload>> = Mutex::new(BTreeMap::new());
    let mut assembled = ASSEMBLED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(payload) = assembled.get(&base) {
        return Ok(payload.clone());
    }
    let payload = build(base, progress)?;
    assembled.insert(base, payload.clone());
    Ok(payload)
}

/// Builds the payload of a machine for tests.
fn build(base: Flavour, progress: &mut dyn FnMut(&str)) -> Result<Payload, EquipmentError> {
    // Cargo has a lock of its own.
    let (programs, of_tests) = programs::build_all(progress)?;
    let _guard = project::lock()?;
    let mut payload = Payload::default();
    let nodes = add_project(&mut payload, programs, base, progress)?;
    payload.program("bin/insula-scenario", Content::File(of_tests.scenario));
    payload.program("bin/insula-probe", Content::File(of_tests.probe));
    payload.program("bin/notes", Content::File(of_tests.notes));
    payload.file("hostile", Content::File(of_tests.hostile));
    payload.file("tasks.py", Content::Bytes(TASKS.to_vec()));
    add_criu(&mut payload, progress)?;
    add_crit(&mut payload, progress)?;
    let modules = module::build_with_test_drivers(&kernels::fetch(base, progress)?)?;
    for name in module::TEST_DRIVERS {
        let file = module::test_driver(&modules).join(name);
        payload.file(name, Content::File(file));
    }
    for (kernel, folder) in nodes.kernels.iter().zip(&nodes.modules) {
        module::build_with_test_drivers(kernel)?;
        for name in [module::FAULT_DRIVER, module::RTNL_DRIVER] {
            let inside = format!("modules/{}/{name}", kernel.release);
            let file = module::test_driver(folder).join(name);
            payload.file(&inside, Content::File(file));
        }
    }
    let peer = node_initrd::peer_initrd(&nodes.kernels, &nodes.modules, &of_tests.peer)?;
    payload.file("peer.cpio", Content::Bytes(peer));
    Ok(payload)
}

/// Builds the payload of a machine that shows what users have, as far as it has changed.
///
/// # Errors
/// When a part cannot be built.
pub fn assemble_for_users(
    base: Flavour,
    progress: &mut dyn FnMut(&str),
) -> Result<Payload, EquipmentError> {
    let programs = programs::build(progress)?;
    let _guard = project::lock()?;
    let mut payload = Payload::default();
    add_project(&mut payload, programs, base, progress)?;
    Ok(payload)
}

/// Kernels that nodes boot, and the folders of the modules for them.
struct Nodes {
    kernels: Vec<Kernel>,
    modules: Vec<PathBuf>,
}

/// Adds what users have, and an initial file system for nodes.
fn add_project(
    payload: &mut Payload,
    programs: Programs,
    base: Flavour,
    progress: &mut dyn FnMut(&str),
) -> Result<Nodes, EquipmentError> {
    payload.program("bin/insula", Content::File(programs.insula));
    payload.program("bin/insula-files", Content::File(programs.files));
    payload.program("bin/insula-blocks", Content::File(programs.blocks));
    payload.program("bin/insula-network", Content::File(programs.network));
    payload.program("bin/insula-demo", Content::Bytes(DEMO.to_vec()));
    payload.file("lib/insula/lwk", Content::File(programs.lwk));
    payload.file("lib/insula/vmm", Content::File(programs.vmm));
    payload.program("lib/insula/agent", Content::File(programs.agent));
    payload.program("lib/insula/insula-proxy", Content::File(programs.proxy));
    for (package, path) in [VIRTIOFSD, STORAGE_DAEMON, MKFS_EROFS] {
        let file = packages::file(package, path)?;
        let name = path.rsplit('/').next().unwrap_or(path);
        payload.program(&format!("bin/{name}"), Content::File(file));
    }
    let modules = module::build(&kernels::fetch(base, progress)?)?;
    payload.file("insula.ko", Content::File(modules.join("insula.ko")));
    let kernels = fetch_nodes(base, progress)?;
    payload.file("node.cpio", Content::Bytes(node_initrd::initrd(&kernels)?));
    let modules = kernels
        .iter()
        .map(module::build)
        .collect::<Result<Vec<_>, _>>()?;
    for (kernel, folder) in kernels.iter().zip(&modules) {
        for name in module::BUILT {
            let inside = format!("modules/{}/{name}", kernel.release);
            payload.file(&inside, Content::File(folder.join(name)));
        }
    }
    Ok(Nodes { kernels, modules })
}

/// Adds CRIU of a newer Debian, whose own version does not know the nodes' kernels, with its libraries
/// and their loader in one folder.
fn add_criu(payload: &mut Payload, progress: &mut dyn FnMut(&str)) -> Result<(), EquipmentError> {
    let folder = project::build().join("criu");
    if !folder.exists() {
        progress("fetching CRIU (under a minute)");
        let work = tempfile::tempdir_in(project::build())?;
        Suite::open(UNSTABLE)?.unpack_all(&["criu"], work.path())?;
        std::fs::rename(work.keep(), &folder)?;
    }
    payload.program("criu/criu", Content::File(folder.join("usr/sbin/criu")));
    for entry in std::fs::read_dir(folder.join("usr/lib/x86_64-linux-gnu"))? {
        let path = entry?.path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if path.is_file() && name.contains(".so") {
            payload.program(&format!("criu/{name}"), Content::File(path));
        }
    }
    Ok(())
}

/// Adds `crit` of the same Debian.
fn add_crit(payload: &mut Payload, progress: &mut dyn FnMut(&str)) -> Result<(), EquipmentError> {
    let folder = project::build().join("crit");
    if !folder.exists() {
        progress("fetching crit (under a minute)");
        let work = tempfile::tempdir_in(project::build())?;
        Suite::open(UNSTABLE)?.unpack_only(&CRIT, work.path())?;
        std::fs::rename(work.keep(), &folder)?;
    }
    add_folder(payload, &folder.join(MODULES), "crit")?;
    Ok(())
}

/// Adds the files of a folder, and of those in it.
fn add_folder(payload: &mut Payload, folder: &Path, inside: &str) -> io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let inside = format!("{inside}/{name}");
        match path.is_dir() {
            true => add_folder(payload, &path, &inside)?,
            false => payload.file(&inside, Content::File(path)),
        }
    }
    Ok(())
}

/// Builds the payload of a machine that has the project installed: only what tests need.
///
/// # Errors
/// When a part cannot be built.
pub fn assemble_for_installed(
    base: Flavour,
    progress: &mut dyn FnMut(&str),
) -> Result<Payload, EquipmentError> {
    let (_, of_tests) = programs::build_all(progress)?;
    let mut payload = Payload::default();
    payload.program("bin/insula-scenario", Content::File(of_tests.scenario));
    let _guard = project::lock()?;
    let nodes = fetch_nodes(base, progress)?;
    payload.file("node.cpio", Content::Bytes(node_initrd::initrd(&nodes)?));
    Ok(payload)
}

/// All kernels that nodes boot on a machine with this base.
fn fetch_nodes(base: Flavour, progress: &mut dyn FnMut(&str)) -> Result<Vec<Kernel>, FetchError> {
    let own =
        Some(base).filter(|base| !Flavour::USUAL.contains(base) && base.sanitizer().is_none());
    let nodes = Flavour::USUAL.into_iter().chain(own);
    nodes
        .map(|flavour| kernels::fetch(flavour, progress))
        .collect()
}
