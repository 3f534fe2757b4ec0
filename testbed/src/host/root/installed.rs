//! Root disk of a machine on which the project is installed as its users install it: a Debian under
//! systemd with kernels and their headers, and the project's packages, installed by apt. Their
//! scripts have DKMS build the module for each kernel.

use std::fs;
use std::path::{Path, PathBuf};

use super::cache::cached;
use super::{Root, RootError, at, debian, disk};
use crate::host::debs::{self, Debs};
use crate::host::kernels::{self, Flavour, Kernel};
use crate::host::payload::shell_command;
use crate::host::tool::Tool;

/// Folder of the packages, to be installed again.
pub const DEBS: &str = "/root/packages";

/// Packages beyond the essential ones: with what the kernels' headers need (libelf1, libssl3,
/// pahole, zlib1g), since kernels come without their packages, which would make initial file
/// systems that nobody boots.
pub(super) const PACKAGES: &[&str] = &[
    "busybox-static",
    "dkms",
    "iproute2",
    "kmod",
    "libelf1",
    "libssl3",
    "pahole",
    "procps",
    "systemd-sysv",
    "udev",
    "zlib1g",
];
/// Makes DKMS build for the installed kernels: it builds for the running one, which is none of
/// them.
const BUILD_FOR_ALL: &str =
    "echo autoinstall_all_kernels=yes > \"$1/etc/dkms/framework.conf.d/testbed.conf\"";

pub(super) fn image(progress: &mut dyn FnMut(&str)) -> Result<PathBuf, RootError> {
    let debs = debs::build(progress)?;
    let kernels = Flavour::USUAL.map(|flavour| kernels::fetch(flavour, progress));
    let kernels = kernels.into_iter().collect::<Result<Vec<_>, _>>()?;
    let base = base(progress)?;
    cached("installed.ext4", &recipe(&debs, &kernels), |work| {
        progress("making the `installed` root disk: apt installs the packages (about a minute)");
        let (tree, image) = (work.join("root.tar"), work.join("image"));
        install(&base, &kernels, &debs, &tree)?;
        disk(&tree, Root::Installed.size_bytes(), &image)?;
        Ok(image)
    })
}

/// Content of the disk without the project, which changes seldom.
fn base(progress: &mut dyn FnMut(&str)) -> Result<PathBuf, RootError> {
    cached("installed-base.tar", &Root::Installed.recipe(), |work| {
        progress("fetching Debian's packages for the `installed` root disk (a minute or two)");
        let tree = work.join("root.tar");
        // A user could not unpack device nodes: they are put into the final tar.
        let options = [
            "--dpkgopt=path-exclude=/usr/share/doc/*",
            "--skip=output/dev",
        ];
        debian(&Root::Installed.packages(), &options, &tree)?;
        Ok(tree)
    })
}

fn recipe(debs: &Debs, kernels: &[Kernel]) -> String {
    let releases: Vec<_> = kernels.iter().map(|one| one.release.as_str()).collect();
    let (base, sources) = (Root::Installed.recipe(), &debs.sources);
    format!("{base}kernels {}\nsources {sources}", releases.join(" "))
}

/// Puts kernels and packages on top of `base`. Hooks run with the new root as `$1`.
fn install(base: &Path, kernels: &[Kernel], debs: &Debs, tree: &Path) -> Result<(), RootError> {
    let mut tool = Tool::new("mmdebstrap").args(["--quiet", "--variant=custom", "--skip=update"]);
    tool = tool.arg(format!("--setup-hook=tar-in {} /", quoted(&[base])));
    let folders = format!("mkdir -p \"$1/usr/lib/modules\" \"$1{DEBS}\"");
    let mut hooks = vec![BUILD_FOR_ALL.to_owned(), folders];
    for kernel in kernels {
        hooks.extend(kernel_hooks(kernel)?);
    }
    hooks.push(format!(
        "copy-in {} {DEBS}",
        quoted(&[&debs.command, &debs.module])
    ));
    hooks.push(format!("chroot \"$1\" sh -c '{}'", install_command()));
    for hook in hooks {
        tool = tool.arg(format!("--customize-hook={hook}"));
    }
    // mmdebstrap takes the distribution's name here; it is not needed.
    tool.arg("").arg(tree).run()?;
    Ok(())
}

/// DKMS writes its errors to a file, which is printed if it fails.
fn install_command() -> String {
    format!(
        "apt-get -q install --yes --no-install-recommends {DEBS}/*.deb || \
         {{ cat /var/lib/dkms/insula/*/build/make.log; exit 1; }}"
    )
}

/// Hooks that put a kernel's modules and headers where its packages have them.
fn kernel_hooks(kernel: &Kernel) -> Result<Vec<String>, RootError> {
    let release = &kernel.release;
    let (modules, headers) = (kernel.modules(), kernel.headers());
    let sources = headers.parent().unwrap_or(&headers);
    let tools = sources.with_file_name("lib");
    Ok(vec![
        format!("copy-in {} /usr/lib/modules", quoted(&[&modules])),
        format!("copy-in {} /usr/src", quoted(&entries(sources)?)),
        format!("copy-in {} /usr/lib", quoted(&entries(&tools)?)),
        format!("ln -s /usr/src/linux-headers-{release} \"$1/usr/lib/modules/{release}/build\""),
    ])
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, RootError> {
    let entries = fs::read_dir(folder).map_err(at(folder))?;
    let paths = entries.map(|entry| Ok(entry?.path()));
    paths.collect::<std::io::Result<_>>().map_err(at(folder))
}

fn quoted<P: AsRef<Path>>(paths: &[P]) -> String {
    let words: Vec<_> = paths
        .iter()
        .map(|path| path.as_ref().to_string_lossy())
        .collect();
    shell_command(&words)
}
