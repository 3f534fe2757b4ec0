//! Building images of Linux nodes used as containers: an installed kernel, and an initial file
//! system of the agent and the drivers that a node needs.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use insula_base::error::Error;
use insula_base::root::Root;
use insula_driver::Driver;
use insula_driver::name::Name;

use super::add::check_name;
use super::{
    AddRequest, Description, Files, Initramfs, Initrd, KernelModule, Payload, Prepared, built_in,
    criu, installed, modules_with_dependencies,
};

/// Drivers of a node's devices, as modprobe names them: power button, vsock, virtio-fs and
/// overlays, network, disks, persistent memory, entropy, balloon.
const DRIVERS: [&str; 13] = [
    "button",
    "evdev",
    "vmw_vsock_virtio_transport",
    "virtiofs",
    "overlay",
    "virtio_net",
    "virtio_blk",
    "erofs",
    "nfit",
    "nd_pmem",
    "ext4",
    "virtio_rng",
    "virtio_balloon",
];
/// Drivers of containers: their network cards, what lists sockets for a move, and what CRIU wants to find.
const CONTAINER_DRIVERS: [&str; 10] = [
    "macvlan",
    "af_packet_diag",
    "netlink_diag",
    "raw_diag",
    "tcp_diag",
    "udp_diag",
    "unix_diag",
    "tun",
    "veth",
    "nf_conntrack_netlink",
];
/// The project's own modules, loaded after the drivers.
const OWN: [&str; 2] = ["insula.ko", "insula_virtio.ko"];

/// Folders of the initial file system: mount points, and parents of files.
const FOLDERS: [&str; 11] = [
    "bin",
    "dev",
    "etc",
    "lib",
    "lib/insula",
    "proc",
    "root",
    "run",
    "sbin",
    "sys",
    "tmp",
];

/// Parts of an initial file system besides agent and drivers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BuildFiles {
    /// Folder of `insula.ko` and `insula_virtio.ko` for the kernel, if not where DKMS puts them.
    pub module_folder: Option<PathBuf>,
    /// Folder whose content is added.
    pub content: Option<PathBuf>,
    /// CRIU's file, which is added with its libraries: containers can be moved then.
    pub criu: Option<PathBuf>,
}

/// An image to be built.
#[derive(Clone, Debug)]
pub struct BuildRequest {
    /// Its name.
    pub name: Name,
    /// The release of an installed kernel, or the beginning of it.
    pub release: String,
    /// Parts of its initial file system.
    pub files: BuildFiles,
    /// Kernel command line of every node of this image.
    pub append: String,
    /// Form of the kernel to keep.
    pub payload: Payload,
}

/// Builds an image and makes it resident.
///
/// # Errors
/// When a part is missing or unusable, or as [`add`](super::add); nothing is left behind.
pub fn build(driver: &Driver, root: &Root, request: &BuildRequest) -> Result<Description, Error> {
    check_name(driver, &request.name)?;
    let kernel = installed(root, &request.release)?.kernel;
    let initrd = build_initrd(root, &kernel, &request.files)?;
    let add = AddRequest {
        name: request.name.clone(),
        files: Files {
            kernel,
            initrd: None,
        },
        append: request.append.clone(),
        payload: request.payload,
        project: None,
    };
    let prepared = Prepared::new(&add, Some(initrd))?;
    prepared.add(driver)?;
    Ok(prepared.description)
}

/// Builds the initial file system for an installed kernel.
///
/// # Errors
/// When a part is missing or cannot be read.
pub fn build_initrd(root: &Root, kernel: &Path, files: &BuildFiles) -> Result<Initrd, Error> {
    let agent = built_in::agent();
    Ok(Initrd {
        bytes: initramfs(root, files, &release(kernel), &agent)?,
        // Recorded as the initrd's file: it identifies images that were built.
        path: agent,
    })
}

fn release(kernel: &Path) -> String {
    let name = kernel.file_name().unwrap_or_default().to_string_lossy();
    name.trim_start_matches("vmlinuz-").to_owned()
}

fn initramfs(
    root: &Root,
    files: &BuildFiles,
    release: &str,
    agent: &Path,
) -> Result<Vec<u8>, Error> {
    let program = fs::read(agent).map_err(|source| {
        Error::new(format!("the agent {} cannot be read", agent.display()))
            .because(source)
            .nothing_kept()
            .hint("it is part of the command's package: reinstall that")
    })?;
    let modules = modules(root, files, release)?;
    let mut archive = base(&program, &modules).map_err(not_added(agent))?;
    if let Some(content) = &files.content {
        archive = tree(archive, content, Path::new(""))?;
    }
    if let Some(program) = &files.criu {
        archive = criu::add(archive, program)?;
    }
    archive.finish().map_err(not_added(agent))
}

/// The agent as init, and the modules that it loads.
fn base(agent: &[u8], modules: &[KernelModule]) -> io::Result<Initramfs> {
    let mut archive = Initramfs::default();
    for folder in FOLDERS {
        archive = archive.directory(folder)?;
    }
    archive = archive
        .device("dev/console", 5, 1)?
        .device("dev/null", 1, 3)?;
    let mut list = String::new();
    for module in modules {
        let name = format!("lib/insula/{}", module.file);
        archive = archive.file(&name, &module.content)?;
        list.push_str(&format!("/{name}\n"));
    }
    archive
        .file("lib/insula/modules", list.as_bytes())?
        .program("init", agent)
}

/// The drivers, then the project's own modules.
fn modules(root: &Root, files: &BuildFiles, release: &str) -> Result<Vec<KernelModule>, Error> {
    let failed = |error: Error| {
        error
            .context(format!("the modules of kernel {release} cannot be read"))
            .nothing_kept()
    };
    let folder = root.path(&format!("/lib/modules/{release}"));
    let drivers = [&DRIVERS[..], &CONTAINER_DRIVERS].concat();
    let mut modules = modules_with_dependencies(&folder, &drivers).map_err(failed)?;
    for file in OWN {
        modules.push(match &files.module_folder {
            Some(own) => KernelModule::read(&own.join(file)).map_err(failed)?,
            None => {
                let name = file.trim_end_matches(".ko");
                let found = modules_with_dependencies(&folder, &[name]).map_err(failed)?;
                let last = found.into_iter().next_back();
                last.ok_or_else(|| no_module(file, release))?
            }
        });
    }
    Ok(modules)
}

/// The error for one of the project's modules that does not exist for that kernel.
fn no_module(file: &str, release: &str) -> Error {
    Error::new(format!("{file} was not found for the kernel {release}"))
        .nothing_kept()
        .hint(
            "install the headers of that kernel, so that DKMS builds it, or name its folder with \
             --module-folder",
        )
}

/// The error for a file that cannot become a part of the image.
fn not_added(path: &Path) -> impl FnOnce(io::Error) -> Error {
    |source| {
        Error::new(format!("{} cannot be added to the image", path.display()))
            .because(source)
            .nothing_kept()
    }
}

/// Adds the content of a folder as the archive's folder `target`.
fn tree(mut archive: Initramfs, folder: &Path, target: &Path) -> Result<Initramfs, Error> {
    let entries = fs::read_dir(folder).map_err(not_added(folder))?;
    let names = entries.map(|entry| Ok(entry?.file_name()));
    let mut names = names
        .collect::<io::Result<Vec<_>>>()
        .map_err(not_added(folder))?;
    names.sort();
    for name in names {
        let (path, target) = (folder.join(&name), target.join(&name));
        let kind = path.symlink_metadata().map_err(not_added(&path))?;
        let name = target.to_string_lossy();
        if kind.is_dir() {
            // A folder that exists already is added twice, which is harmless.
            archive = archive.directory(&name).map_err(not_added(&path))?;
            archive = tree(archive, &path, &target)?;
        } else if kind.is_symlink() {
            let link = fs::read_link(&path).map_err(not_added(&path))?;
            let link = link.as_os_str().as_bytes();
            archive = archive.link(&name, link).map_err(not_added(&path))?;
        } else if kind.is_file() {
            let content = fs::read(&path).map_err(not_added(&path))?;
            let added = match kind.permissions().mode() & 0o111 {
                0 => archive.file(&name, &content),
                _ => archive.program(&name, &content),
            };
            archive = added.map_err(not_added(&path))?;
        }
    }
    Ok(archive)
}

#[cfg(test)]
mod tests {
    use insula_base::root::fake::Tree;

    use super::*;

    fn files(tree: &Tree) -> BuildFiles {
        BuildFiles {
            module_folder: None,
            criu: None,
            content: Some(tree.root().path("/content")),
        }
    }

    /// Names in an archive, with their contents.
    fn content(archive: &[u8]) -> Vec<(String, Vec<u8>)> {
        let (mut rest, mut all) = (archive, Vec::new());
        loop {
            let reader = cpio::newc::Reader::new(rest).unwrap();
            if reader.entry().is_trailer() {
                return all;
            }
            let name = reader.entry().name().to_owned();
            let mut bytes = Vec::new();
            rest = reader.to_writer(&mut bytes).unwrap();
            all.push((name, bytes));
        }
    }

    #[test]
    fn an_image_has_agent_drivers_and_content() {
        let tree = Tree::new(&[
            ("/agent", "the agent"),
            (
                "/lib/modules/6.1/modules.dep",
                "net/virtio_net.ko: net/failover.ko\nnet/failover.ko:\n\
              updates/dkms/insula.ko:\nupdates/dkms/insula_virtio.ko:\n",
            ),
            ("/lib/modules/6.1/net/virtio_net.ko", "\x7fELF net"),
            ("/lib/modules/6.1/net/failover.ko", "\x7fELF failover"),
            ("/lib/modules/6.1/updates/dkms/insula.ko", "\x7fELF insula"),
            (
                "/lib/modules/6.1/updates/dkms/insula_virtio.ko",
                "\x7fELF virtio",
            ),
            ("/content/bin/tool", "a tool"),
        ]);
        let agent = tree.root().path("/agent");
        let made = initramfs(&tree.root(), &files(&tree), "6.1", &agent).unwrap();
        let all = content(&made);
        let of = |name: &str| {
            let found = all.iter().find(|(one, _)| one == name);
            String::from_utf8(found.unwrap_or_else(|| panic!("{name}")).1.clone()).unwrap()
        };
        assert_eq!(
            (of("init"), of("bin/tool")),
            ("the agent".into(), "a tool".into())
        );
        let list = "failover virtio_net insula insula_virtio";
        let list: Vec<_> = list
            .split(' ')
            .map(|one| format!("/lib/insula/{one}.ko\n"))
            .collect();
        assert_eq!(of("lib/insula/modules"), list.concat());
        assert_eq!(of("lib/insula/insula_virtio.ko"), "\x7fELF virtio");
    }

    #[test]
    fn missing_parts_are_named() {
        let tree = Tree::new(&[("/agent", ""), ("/lib/modules/6.1/modules.dep", "")]);
        let refused = |files: &BuildFiles, agent: &str| {
            let agent = tree.root().path(agent);
            initramfs(&tree.root(), files, "6.1", &agent)
                .unwrap_err()
                .to_string()
        };
        let usual = files(&tree);
        assert!(refused(&usual, "/agent").contains("insula.ko was not found for the kernel 6.1"));
        assert!(refused(&usual, "/none").contains("reinstall that"));
    }
}
