//! A kernel's loadable modules, out of its package.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::Kernel;
use crate::tool::{Tool, ToolError};

/// Why a kernel's modules could not be had.
#[derive(Debug, thiserror::Error)]
pub enum ModulesError {
    /// One could not be decompressed.
    #[error(transparent)]
    Tool(#[from] ToolError),
    /// A file could not be read.
    #[error("{path}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// A loadable module.
pub(crate) struct KernelModule {
    /// Its file's name, as `button.ko`.
    pub(crate) file: String,
    /// Its content, decompressed: busybox knows only plain ones.
    pub(crate) content: Vec<u8>,
}

/// The named modules, in modprobe's names, each after those that it needs. One that
/// is built in, or not in this kernel, is left out.
pub(crate) fn with_needs(
    kernel: &Kernel,
    names: &[&str],
) -> Result<Vec<KernelModule>, ModulesError> {
    let index = kernel.modules().join("modules.dep");
    let index = fs::read_to_string(&index).map_err(at(&index))?;
    let files = with_dependencies(&index, names);
    let modules = files.iter().map(|file| {
        Ok(KernelModule {
            file: plain_name(file).to_owned(),
            content: content(&kernel.modules().join(file))?,
        })
    });
    modules.collect()
}

/// A module's content, decompressed.
fn content(path: &Path) -> Result<Vec<u8>, ModulesError> {
    if path.extension().is_none_or(|extension| extension != "xz") {
        return fs::read(path).map_err(at(path));
    }
    let folder = tempfile::tempdir().map_err(at(path))?;
    let copy = folder.path().join("module.ko.xz");
    fs::copy(path, &copy).map_err(at(&copy))?;
    Tool::new("xz").arg("-d").arg(&copy).run()?;
    let plain = copy.with_extension("");
    fs::read(&plain).map_err(at(&plain))
}

/// Files of the named modules, each after those it needs. A name that is not in
/// the index is built in, or not in this kernel.
fn with_dependencies(index: &str, names: &[&str]) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let mut files = Vec::new();
    for name in names {
        let line = index.lines().find_map(|line| {
            let (file, needs) = line.split_once(':')?;
            (module_name(file) == *name).then_some((file, needs))
        });
        let Some((file, needs)) = line else { continue };
        // depmod lists the nearest dependency first.
        for file in needs.split_whitespace().rev().chain([file]) {
            if seen.insert(file) {
                files.push(file.to_owned());
            }
        }
    }
    files
}

/// modprobe's name for a module's file.
fn module_name(file: &str) -> String {
    plain_name(file).trim_end_matches(".ko").replace('-', "_")
}

/// The file's name without folder and compression.
fn plain_name(file: &str) -> &str {
    file.rsplit('/')
        .next()
        .unwrap_or(file)
        .trim_end_matches(".xz")
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> ModulesError + use<> {
    let path = path.to_owned();
    |source| ModulesError::File { path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INDEX: &str = "\
kernel/fs/ext4/ext4.ko: kernel/fs/jbd2/jbd2.ko kernel/lib/crc16.ko
kernel/drivers/nvme/host/nvme-core.ko.xz:
kernel/drivers/nvme/host/nvme.ko.xz: kernel/drivers/nvme/host/nvme-core.ko.xz
kernel/arch/x86/crypto/crc32c-intel.ko:
";

    #[test]
    fn modules_follow_what_they_need() {
        let files = with_dependencies(
            INDEX,
            &["nvme", "nvme_core", "ext4", "crc32c_intel", "absent"],
        );
        let names: Vec<_> = files.iter().map(|file| plain_name(file)).collect();
        let expected = [
            "nvme-core.ko",
            "nvme.ko",
            "crc16.ko",
            "jbd2.ko",
            "ext4.ko",
            "crc32c-intel.ko",
        ];
        assert_eq!(names, expected);
    }
}
