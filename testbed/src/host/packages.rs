//! Debian packages, downloaded and unpacked into the build folder and never
//! installed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::project;
use super::tool::{Tool, ToolError};

/// Failure to get packages.
#[derive(Debug, thiserror::Error)]
pub enum PackageError {
    /// apt does not know it, or it has no such dependency.
    #[error(
        "apt knows no `{wanted}`: run `apt-get update`, and see that bookworm and \
         bookworm-security are among its sources"
    )]
    Unknown {
        /// Package that was asked for.
        wanted: String,
    },
    /// A program failed.
    #[error(transparent)]
    Tool(#[from] ToolError),
    /// A file could not be written.
    #[error("{path}: {source}")]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The underlying error.
        source: io::Error,
    },
}

/// The packages that `package` depends on, direct ones only.
///
/// # Errors
/// When apt fails or does not know the package.
pub fn dependencies(package: &str) -> Result<Vec<String>, PackageError> {
    dependencies_by(Tool::new("apt-cache"), package)
}

/// As [`dependencies`], by an apt-cache that has been given options, if any.
pub(super) fn dependencies_by(apt_cache: Tool, package: &str) -> Result<Vec<String>, PackageError> {
    let text = apt_cache.args(["depends", package]).run()?;
    let names: Vec<_> = parse_dependencies(&text).map(str::to_owned).collect();
    if names.is_empty() {
        return Err(PackageError::Unknown {
            wanted: package.to_owned(),
        });
    }
    Ok(names)
}

/// Downloads packages in the version that apt would install and unpacks them, one over the other,
/// into `target`.
///
/// # Errors
/// When apt or dpkg fails or the folder cannot be made.
pub fn unpack(packages: &[String], target: &Path) -> Result<(), PackageError> {
    unpack_with(apt_get(), packages, target)
}

/// As [`unpack`], by an apt-get that has been given options, if any.
pub(super) fn unpack_with(
    apt_get: Tool,
    packages: &[String],
    target: &Path,
) -> Result<(), PackageError> {
    let at = |source| PackageError::File {
        path: target.to_owned(),
        source,
    };
    fs::create_dir_all(target).map_err(at)?;
    let downloads = tempfile::tempdir_in(target).map_err(at)?;
    let tool = apt_get.arg("download").args(packages);
    tool.directory(downloads.path()).run()?;
    for file in fs::read_dir(downloads.path()).map_err(at)? {
        let path = file.map_err(at)?.path();
        Tool::new("dpkg").arg("-x").arg(path).arg(target).run()?;
    }
    Ok(())
}

/// apt-get, without its command.
pub(super) fn apt_get() -> Tool {
    // As root, apt would otherwise download as a user who cannot write to our folders.
    Tool::new("apt-get").args(["-q", "-o", "APT::Sandbox::User=root"])
}

/// File of a package, fetched on first use.
///
/// # Errors
/// As [`unpack`].
pub fn file(package: &str, path: &str) -> Result<PathBuf, PackageError> {
    let folder = project::build().join(package);
    let file = folder.join(path);
    if !file.exists() {
        unpack(&[package.to_owned()], &folder)?;
    }
    Ok(file)
}

/// Names in the output of `apt-cache depends`.
fn parse_dependencies(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .filter_map(|line| {
            line.trim_start()
                .trim_start_matches('|')
                .strip_prefix("Depends: ")
        })
        .map(str::trim)
        .filter(|name| !name.starts_with('<'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_are_taken_from_listing() {
        let text = "linux-headers-x\n  Depends: linux-headers-x-common\n |Depends: gcc\n  \
                    Depends: <virtual>\n    other\n  Recommends: no\n";
        let names: Vec<_> = parse_dependencies(text).collect();
        assert_eq!(names, ["linux-headers-x-common", "gcc"]);
    }
}
