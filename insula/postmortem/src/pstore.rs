//! Logs of the base's earlier kernels, which survived a reset: files of the kernel's pstore, of panics
//! and oopses and of what a watcher has kept.

use std::io;
use std::path::PathBuf;
use std::time::SystemTime;

use insula_base::error::Error;
use insula_base::root::Root;
use serde::Serialize;

/// Where the kernel shows them, and where systemd-pstore(8) moves them to.
const FOLDERS: [&str; 2] = ["/sys/fs/pstore", "/var/lib/systemd/pstore"];
/// Start of the names of files with the log of a kernel that ended.
const LOGS: &str = "dmesg-";
/// Depth of folders that is looked at: systemd has one for each end, and in it one for each record.
const DEPTH_MAX: usize = 3;

/// A log that survived.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct KeptLog {
    /// Path of the file.
    pub path: PathBuf,
    /// When it was written, in seconds since 1970; of a file that systemd has moved, of that.
    pub written_unix_s: u64,
    /// The log.
    pub text: String,
}

/// The logs, oldest first.
///
/// # Errors
/// When one cannot be read.
pub fn kept_logs(root: &Root) -> Result<Vec<KeptLog>, Error> {
    let mut logs = Vec::new();
    for folder in FOLDERS {
        collect(root, folder, DEPTH_MAX, &mut logs)?;
    }
    logs.sort_by(|one, other| {
        (one.written_unix_s, &one.path).cmp(&(other.written_unix_s, &other.path))
    });
    Ok(logs)
}

fn collect(root: &Root, folder: &str, depth: usize, logs: &mut Vec<KeptLog>) -> Result<(), Error> {
    for name in root.names(folder) {
        let path = format!("{folder}/{name}");
        if root.path(&path).is_dir() {
            if depth > 0 {
                collect(root, &path, depth - 1, logs)?;
            }
        } else if name.starts_with(LOGS) {
            logs.push(read(root, &path).map_err(|error| unreadable(&path, error))?);
        }
    }
    Ok(())
}

fn read(root: &Root, path: &str) -> io::Result<KeptLog> {
    let written = std::fs::metadata(root.path(path))?.modified()?;
    let written = written.duration_since(SystemTime::UNIX_EPOCH);
    Ok(KeptLog {
        path: path.into(),
        written_unix_s: written.map_or(0, |time| time.as_secs()),
        text: root.text(path)?,
    })
}

fn unreadable(path: &str, source: io::Error) -> Error {
    Error::new(format!("'{path}' cannot be read"))
        .because(source)
        .untouched()
}

#[cfg(test)]
mod tests {
    use insula_base::root::fake::Tree;

    use super::*;

    #[test]
    fn logs_of_the_kernel_and_of_systemd_are_found() {
        let tree = Tree::new(&[
            (
                "/sys/fs/pstore/dmesg-ramoops-3",
                "Oops#1 Part1\nit failed\n",
            ),
            ("/sys/fs/pstore/console-ramoops-0", "not a log of an end"),
            ("/var/lib/systemd/pstore/176/001/dmesg-ramoops-0", "moved"),
            ("/var/lib/systemd/pstore/1/2/3/4/5/dmesg-x", "too deep"),
        ]);
        let logs = kept_logs(&tree.root()).unwrap();
        let mut texts: Vec<_> = logs.iter().map(|log| log.text.as_str()).collect();
        texts.sort_unstable();
        assert_eq!(texts, ["Oops#1 Part1\nit failed", "moved"]);
        assert!(
            logs.iter()
                .any(|log| log.path.as_os_str() == "/sys/fs/pstore/dmesg-ramoops-3")
        );
    }

    #[test]
    fn without_pstore_there_are_none() {
        assert_eq!(kept_logs(&Tree::new(&[]).root()).unwrap(), []);
    }
}
