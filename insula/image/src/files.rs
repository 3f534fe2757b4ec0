//! The files that an image or a node is made from.

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use insula_base::root::Root;
use kimage::{ImageError, Loadable};

use super::{LogSource, Payload};

/// Why files cannot become an image or a node. Nothing has been changed.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// The kernel's file cannot be read.
    #[error(
        "the kernel {} cannot be read: {source}; nothing was touched\n\
         give the path of a readable bzImage or vmlinux with --kernel", path.display()
    )]
    Kernel {
        /// Its path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file is no kernel that can be started.
    #[error("{}: {source}; nothing was touched", path.display())]
    Image {
        /// Its path.
        path: PathBuf,
        /// Why.
        source: ImageError,
    },
    /// The initrd cannot be read.
    #[error(
        "the initrd {} cannot be read: {source}; nothing was touched\n\
         give the path of a readable initrd with --initrd, or make one with `update-initramfs -c`",
        path.display()
    )]
    Initrd {
        /// Its path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// No installed kernel has that release.
    #[error(
        "no kernel in /boot has the release '{release}' ({}); nothing was touched\n\
         use one of these, or give its file with --kernel", listed(.there)
    )]
    NotInstalled {
        /// Release requested, whole or its beginning.
        release: String,
        /// Installed releases.
        there: Vec<String>,
    },
    /// Several installed kernels have it.
    #[error(
        "more than one kernel in /boot has a release starting with '{release}': {}; nothing was \
         touched\n\
         give more of the release", .there.join(", ")
    )]
    Ambiguous {
        /// Beginning of a release.
        release: String,
        /// Releases that start with it.
        there: Vec<String>,
    },
}

fn listed(releases: &[String]) -> String {
    match releases {
        [] => "none is installed".to_owned(),
        _ => format!("installed: {}", releases.join(", ")),
    }
}

/// A kernel and an initrd, by path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// The kernel: a bzImage or an ELF vmlinux.
    pub kernel: PathBuf,
    /// The initrd, if any.
    pub initrd: Option<PathBuf>,
}

/// Finds an installed kernel by its release or an unambiguous beginning of it, where Debian's
/// kernel packages and initramfs-tools put them.
///
/// # Errors
/// [`FilesError::NotInstalled`], [`FilesError::Ambiguous`].
pub fn installed(root: &Root, release: &str) -> Result<Files, FilesError> {
    let installed = installed_releases(root);
    let releases: Vec<_> = installed.iter().map(String::as_str).collect();
    let owned = |releases: &[&str]| releases.iter().map(|&one| one.to_owned()).collect();
    let matching: Vec<_> = releases
        .iter()
        .copied()
        .filter(|one| starts_with_release(one, release))
        .collect();
    let found = match matching.as_slice() {
        _ if releases.contains(&release) => release,
        [only] => only,
        [] => {
            let (release, there) = (release.to_owned(), owned(&releases));
            return Err(FilesError::NotInstalled { release, there });
        }
        several => {
            let (release, there) = (release.to_owned(), owned(several));
            return Err(FilesError::Ambiguous { release, there });
        }
    };
    Ok(Files {
        kernel: root.path(&format!("/boot/vmlinuz-{found}")),
        initrd: Some(root.path(&format!("/boot/initrd.img-{found}"))),
    })
}

/// The releases of the kernels in /boot, sorted.
#[must_use]
pub fn installed_releases(root: &Root) -> Vec<String> {
    let names = root.names("/boot").into_iter();
    let releases = names.filter_map(|name| Some(name.strip_prefix("vmlinuz-")?.to_owned()));
    releases.collect()
}

/// Whether a release starts with `prefix`. A number is not cut in two: 6.12 does not start with
/// 6.1.
fn starts_with_release(release: &str, prefix: &str) -> bool {
    let ends_in_digit = prefix.ends_with(|last: char| last.is_ascii_digit());
    release.strip_prefix(prefix).is_some_and(|rest| {
        !(ends_in_digit && rest.starts_with(|next: char| next.is_ascii_digit()))
    })
}

/// A kernel's file, read.
#[derive(Debug)]
pub struct KernelFile {
    /// Absolute path.
    pub path: PathBuf,
    /// Its content.
    pub bytes: Vec<u8>,
    /// Its time of modification, in nanoseconds since 1970; 0 if unknown.
    pub modified_ns: u64,
}

impl KernelFile {
    /// Reads the whole file.
    ///
    /// # Errors
    /// [`FilesError::Kernel`].
    pub fn read(path: &Path) -> Result<Self, FilesError> {
        let failed = |source| FilesError::Kernel {
            path: path.to_owned(),
            source,
        };
        let bytes = std::fs::read(path).map_err(failed)?;
        let path = std::path::absolute(path).map_err(failed)?;
        let modified_ns = modified_ns(&path);
        Ok(Self {
            path,
            bytes,
            modified_ns,
        })
    }

    /// The bytes that a node is given, and what a loader needs to know of them.
    ///
    /// # Errors
    /// [`FilesError::Image`].
    pub fn payload(&self, payload: Payload) -> Result<(Cow<'_, [u8]>, Loadable), FilesError> {
        let failed = |source| FilesError::Image {
            path: self.path.clone(),
            source,
        };
        let bytes = match payload {
            Payload::Compressed => Cow::Borrowed(self.bytes.as_slice()),
            Payload::Decompressed => kimage::vmlinux(&self.bytes).map_err(failed)?,
        };
        let loadable = kimage::inspect(&bytes).map_err(failed)?;
        Ok((bytes, loadable))
    }

    /// The source from which the log's layout can be read later.
    #[must_use]
    pub fn log_source(&self) -> LogSource {
        LogSource::File {
            path: self.path.clone(),
            size: self.bytes.len() as u64,
            modified_ns: self.modified_ns,
        }
    }
}

/// Opens an initrd; returns its size in bytes too.
///
/// # Errors
/// [`FilesError::Initrd`].
pub(super) fn open_initrd(path: &Path) -> Result<(File, u64), FilesError> {
    let open = || {
        let file = File::open(path)?;
        let facts = file.metadata()?;
        if facts.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        Ok((file, facts.len()))
    };
    open().map_err(|source| FilesError::Initrd {
        path: path.to_owned(),
        source,
    })
}

fn modified_ns(path: &Path) -> u64 {
    let modified = std::fs::metadata(path).and_then(|facts| facts.modified());
    let since_1970 = modified
        .ok()
        .and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    since_1970
        .and_then(|time| u64::try_from(time.as_nanos()).ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use insula_base::root::fake::Tree;

    use super::*;

    fn tree() -> Tree {
        let names = [
            "vmlinuz-6.1.0-9-cloud",
            "vmlinuz-6.1.0-9",
            "vmlinuz-6.12.1",
            "config-6.5",
        ];
        let tree = Tree::new(&[]);
        for name in names {
            tree.add(&[(&format!("/boot/{name}"), "")]);
        }
        tree
    }

    #[test]
    fn installed_kernels_are_found_by_release_or_its_beginning() {
        let (tree, kernel) = (tree(), |files: Files| {
            files.kernel.file_name().unwrap().to_owned()
        });
        let find = |release| installed(&tree.root(), release).map(kernel);
        assert_eq!(find("6.12").unwrap(), "vmlinuz-6.12.1");
        assert_eq!(find("6.1.0-9").unwrap(), "vmlinuz-6.1.0-9");
        assert!(
            matches!(find("6.1"), Err(FilesError::Ambiguous { there, .. }) if there.len() == 2),
            "6.12 is not among them"
        );
        assert!(matches!(find("6"), Err(FilesError::Ambiguous { there, .. }) if there.len() == 3));
        assert!(
            matches!(find("6.1."), Err(FilesError::Ambiguous { there, .. }) if there.len() == 2)
        );
        let error = find("6.5").unwrap_err().to_string();
        assert!(
            error.contains("installed: 6.1.0-9, 6.1.0-9-cloud, 6.12.1"),
            "{error}"
        );
    }

    #[test]
    fn missing_files_are_named() {
        let missing = Path::new("/nonexistent/vmlinuz");
        let error = KernelFile::read(missing).unwrap_err().to_string();
        assert!(
            error.starts_with("the kernel /nonexistent/vmlinuz cannot be read: "),
            "{error}"
        );
        let error = open_initrd(missing).unwrap_err().to_string();
        assert!(
            error.starts_with("the initrd /nonexistent/vmlinuz cannot be read: "),
            "{error}"
        );
        assert!(open_initrd(Path::new("/")).is_err());
    }

    #[test]
    fn files_that_are_no_kernel_are_refused_in_both_forms() {
        let file = KernelFile {
            path: "/k".into(),
            bytes: vec![7; 5000],
            modified_ns: 0,
        };
        for payload in [Payload::Compressed, Payload::Decompressed] {
            let error = file.payload(payload).unwrap_err().to_string();
            assert!(error.starts_with("/k: "), "{error}");
        }
    }
}
