//! Go of Debian's newest packages: Debian 12's is older than what some programs need.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::packages::PackageError;
use super::project;
use super::suites::{Suite, UNSTABLE};
use super::tool::Tool;

/// Packages that depend on those of one version, and the beginning of the names of these.
const PACKAGES: [&str; 2] = ["golang-go", "golang-src"];
const OF_VERSION: &str = "golang-1.";

/// Go in the folder of a module. What it fetches from the module proxy, and what it builds, it keeps in the build
/// folder.
///
/// # Errors
/// When Debian's packages cannot be fetched.
pub fn go(module: &Path) -> Result<Tool, PackageError> {
    let program = toolchain()?.join("bin/go");
    let kept = project::build().join("go");
    Ok(Tool::new(&program.to_string_lossy())
        .directory(module)
        .env("CGO_ENABLED", "0")
        .env("GOTOOLCHAIN", "local")
        .env("GOFLAGS", "-modcacherw -buildvcs=false")
        .env("GOCACHE", kept.join("cache"))
        .env("GOPATH", kept))
}

/// Its folder, which is fetched once.
fn toolchain() -> Result<PathBuf, PackageError> {
    let folder = project::build().join("go-toolchain");
    if let Some(found) = find(&folder).map_err(at(&folder))? {
        return Ok(found);
    }
    let suite = Suite::open(UNSTABLE)?;
    let mut names = Vec::new();
    for package in PACKAGES {
        let dependencies = suite.dependencies(package)?.into_iter();
        names.extend(dependencies.filter(|name| name.starts_with(OF_VERSION)));
    }
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let build = project::build();
    let unpacked = tempfile::tempdir_in(&build).map_err(at(&build))?;
    suite.unpack_only(&names, unpacked.path())?;
    fs::rename(unpacked.path(), &folder).map_err(at(&folder))?;
    find(&folder)
        .map_err(at(&folder))?
        .ok_or_else(|| PackageError::Unknown {
            wanted: PACKAGES[0].to_owned(),
        })
}

/// The folder of the version that was unpacked there, if one was.
fn find(folder: &Path) -> io::Result<Option<PathBuf>> {
    let parent = folder.join("usr/lib");
    if !parent.exists() {
        return Ok(None);
    }
    let is_go = |path: &PathBuf| {
        let name = path.file_name().and_then(OsStr::to_str);
        name.is_some_and(|name| name.starts_with("go-"))
    };
    let entries = fs::read_dir(parent)?.collect::<Result<Vec<_>, _>>()?;
    Ok(entries.iter().map(fs::DirEntry::path).find(is_go))
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> PackageError + use<> {
    let path = path.to_owned();
    |source| PackageError::File { path, source }
}
