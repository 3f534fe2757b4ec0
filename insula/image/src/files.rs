//! The files that an image or a node is made from.

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use insula_base::error::{Error, Kind};
use insula_base::root::Root;
use kimage::{ImageError, Loadable};

use super::{LogSource, Payload};

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
/// [`Kind::Kernel`] when there is none, or more than one.
pub fn installed(root: &Root, release: &str) -> Result<Files, Error> {
    let installed = installed_releases(root);
    let releases: Vec<_> = installed.iter().map(String::as_str).collect();
    let matching: Vec<_> = releases
        .iter()
        .copied()
        .filter(|one| starts_with_release(one, release))
        .collect();
    let found = match matching.as_slice() {
        _ if releases.contains(&release) => release,
        [only] => only,
        [] => return Err(not_installed(release, &releases)),
        several => return Err(ambiguous(release, several)),
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
    /// [`Kind::Kernel`].
    pub fn read(path: &Path) -> Result<Self, Error> {
        let failed = |source| unreadable_kernel(path, source);
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
    /// [`Kind::Kernel`] when it cannot be started.
    pub fn payload(&self, payload: Payload) -> Result<(Cow<'_, [u8]>, Loadable), Error> {
        let failed = |source| invalid_kernel(&self.path, source);
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
/// [`Kind::Initrd`].
pub(super) fn open_initrd(path: &Path) -> Result<(File, u64), Error> {
    let open = || {
        let file = File::open(path)?;
        let facts = file.metadata()?;
        if facts.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        Ok((file, facts.len()))
    };
    open().map_err(|source| unreadable_initrd(path, source))
}

fn not_installed(release: &str, there: &[&str]) -> Error {
    let there = listed(there);
    let what = format!("no kernel in /boot has the release '{release}' ({there})");
    Error::of(Kind::Kernel, what)
        .untouched()
        .hint("use one of these, or give its file with --kernel")
}

fn listed(releases: &[&str]) -> String {
    match releases {
        [] => "none is installed".to_owned(),
        _ => format!("installed: {}", releases.join(", ")),
    }
}

fn ambiguous(release: &str, there: &[&str]) -> Error {
    let there = there.join(", ");
    let what =
        format!("more than one kernel in /boot has a release starting with '{release}': {there}");
    Error::of(Kind::Kernel, what)
        .untouched()
        .hint("give more of the release")
}

fn unreadable_kernel(path: &Path, source: io::Error) -> Error {
    let what = format!("the kernel {} cannot be read", path.display());
    Error::of(Kind::Kernel, what)
        .because(source)
        .untouched()
        .hint("give the path of a readable bzImage or vmlinux with --kernel")
}

/// The error for a file that is no kernel which can be started.
pub(super) fn invalid_kernel(path: &Path, source: ImageError) -> Error {
    Error::of(Kind::Kernel, path.display().to_string())
        .because(source)
        .untouched()
}

/// The error for an initrd that cannot be read.
pub(super) fn unreadable_initrd(path: &Path, source: io::Error) -> Error {
    let what = format!("the initrd {} cannot be read", path.display());
    Error::of(Kind::Initrd, what)
        .because(source)
        .untouched()
        .hint(
            "give the path of a readable initrd with --initrd, or make one with \
             `update-initramfs -c`",
        )
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
        let refused = |release| find(release).unwrap_err().what;
        let two = "6.1.0-9, 6.1.0-9-cloud";
        assert!(
            refused("6.1").ends_with(&format!(": {two}")),
            "6.12 is not among them"
        );
        assert!(refused("6.1.").ends_with(&format!(": {two}")));
        assert!(refused("6").ends_with(&format!(": {two}, 6.12.1")));
        assert!(refused("6.5").ends_with(&format!("(installed: {two}, 6.12.1)")));
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
