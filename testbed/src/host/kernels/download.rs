//! Kernels that a Debian has: the computer's own, or the newest.

use std::fs;
use std::path::Path;

use super::fetch::{FetchError, at, remove};
use super::newer_tools;
use super::{Flavour, Kernel, headers_of, tree_of};
use crate::host::packages::{self, PackageError};
use crate::host::suites::{Suite, UNSTABLE};
use crate::host::tool::Tool;

/// Parts of a kernel that newer packages have in its folder of modules only, and others in `boot`, too.
const BOOT_FILES: [&str; 3] = ["vmlinuz", "config", "System.map"];

/// Where packages come from.
enum Source {
    Computer,
    Suite(Suite),
}

impl Source {
    fn of(flavour: Flavour) -> Result<Self, PackageError> {
        match flavour {
            Flavour::Unstable => Suite::open(UNSTABLE).map(Self::Suite),
            _ => Ok(Self::Computer),
        }
    }

    fn dependencies(&self, package: &str) -> Result<Vec<String>, PackageError> {
        match self {
            Self::Computer => packages::dependencies(package),
            Self::Suite(suite) => suite.dependencies(package),
        }
    }

    /// First dependency of `package` whose name starts with `prefix`.
    fn first(&self, package: &str, prefix: &str) -> Result<String, PackageError> {
        let dependencies = self.dependencies(package)?;
        let found = dependencies
            .into_iter()
            .find(|name| name.starts_with(prefix));
        found.ok_or_else(|| PackageError::Unknown {
            wanted: format!("{prefix}…, which {package} needs"),
        })
    }

    fn unpack(&self, names: &[String], target: &Path) -> Result<(), PackageError> {
        match self {
            Self::Computer => packages::unpack(names, target),
            Self::Suite(suite) => {
                let names: Vec<_> = names.iter().map(String::as_str).collect();
                suite.unpack_only(&names, target)
            }
        }
    }
}

/// Downloads the kernel and its headers, and makes both usable where they are.
pub(super) fn download(
    flavour: Flavour,
    progress: &mut dyn FnMut(&str),
) -> Result<Kernel, FetchError> {
    let source = Source::of(flavour)?;
    let image = source.first(flavour.package(), "linux-image-")?;
    let release = image["linux-image-".len()..].to_owned();
    let kernel = Kernel { flavour, release };
    progress(&format!(
        "fetching kernel {} and its headers",
        kernel.release
    ));

    // Newer ones are in several packages.
    let end = format!("-{}", kernel.release);
    let mut parts = source.dependencies(&image)?;
    parts.retain(|name| name.ends_with(&end));
    parts.push(image);
    let headers = format!("linux-headers{end}");
    let common = source.first(&headers, "linux-headers-")?;
    let kbuild = source.first(&headers, "linux-kbuild-")?;
    for (folder, names) in [
        (tree_of(flavour), parts),
        (headers_of(flavour), vec![headers, common, kbuild.clone()]),
    ] {
        remove(&folder)?;
        source.unpack(&names, &folder)?;
    }
    arrange(&kernel)?;
    redirect_makefile(&kernel.headers())?;
    if let Source::Suite(suite) = &source {
        newer_tools::make_usable(&kernel, suite, &kbuild)?;
    }
    Tool::new("depmod")
        .arg("-b")
        .arg(kernel.tree())
        .arg(&kernel.release)
        .run()?;
    Ok(kernel)
}

/// Has all parts where packages of Debian 12 have them.
fn arrange(kernel: &Kernel) -> Result<(), FetchError> {
    let (modules, boot) = (kernel.modules(), kernel.tree().join("boot"));
    if !modules.exists() {
        let unpacked = kernel.tree().join("usr/lib/modules").join(&kernel.release);
        let folder = kernel.tree().join("lib/modules");
        fs::create_dir_all(&folder).map_err(at(&folder))?;
        fs::rename(&unpacked, &modules).map_err(at(&unpacked))?;
    }
    fs::create_dir_all(&boot).map_err(at(&boot))?;
    for name in BOOT_FILES {
        let (from, to) = (
            modules.join(name),
            boot.join(format!("{name}-{}", kernel.release)),
        );
        if from.exists() && !to.exists() {
            fs::rename(&from, &to).map_err(at(&from))?;
        }
    }
    Ok(())
}

/// The Makefile includes the common one, and newer ones name the folder, by its place in an installed system:
/// here they lie beside each other.
fn redirect_makefile(headers: &Path) -> Result<(), FetchError> {
    let path = headers.join("Makefile");
    let text = fs::read_to_string(&path).map_err(at(&path))?;
    let text = text.replace("/usr/src/", "$(CURDIR)/../");
    fs::write(&path, text).map_err(at(&path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn makefile_points_beside() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("Makefile");
        fs::write(&path, "include /usr/src/linux-headers-1-common/Makefile\n").unwrap();
        redirect_makefile(folder.path()).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(
            text,
            "include $(CURDIR)/../linux-headers-1-common/Makefile\n"
        );
    }
}
