//! A kernel's loadable modules: finding some by name, and their dependencies.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use insula_base::error::{Error, Source};

/// A loadable module.
#[derive(Debug)]
pub struct KernelModule {
    /// Name of its file, as `button.ko`.
    pub file: String,
    /// Its content, unpacked: not every kernel unpacks modules itself.
    pub content: Vec<u8>,
}

impl KernelModule {
    /// Reads a module's file.
    ///
    /// # Errors
    /// When the file cannot be read or unpacked.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let packed = fs::read(path).map_err(at(path))?;
        let unpacked = kimage::unpack_module(&packed).map_err(at(path))?;
        Ok(Self {
            file: plain_name(&name).to_owned(),
            content: unpacked.into_owned(),
        })
    }
}

/// Reads modules, by the names that modprobe uses, from a kernel's `folder`
/// (`/lib/modules/RELEASE`), each after its dependencies. One that is built in, or not in this
/// kernel, is left out.
///
/// # Errors
/// When a file cannot be read or unpacked.
pub fn modules_with_dependencies(
    folder: &Path,
    names: &[&str],
) -> Result<Vec<KernelModule>, Error> {
    let index = folder.join("modules.dep");
    let index = fs::read_to_string(&index).map_err(at(&index))?;
    let files = with_dependencies(&index, names);
    let modules = files
        .iter()
        .map(|file| KernelModule::read(&folder.join(file)));
    modules.collect()
}

/// Files of the named modules, each after its dependencies. A name that is not in the index is
/// built in, or not in this kernel.
fn with_dependencies(index: &str, names: &[&str]) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let mut files = Vec::new();
    for name in names {
        let line = index.lines().find_map(|line| {
            let (file, dependencies) = line.split_once(':')?;
            (module_name(file) == *name).then_some((file, dependencies))
        });
        let Some((file, dependencies)) = line else {
            continue;
        };
        // depmod lists the nearest dependency first.
        for file in dependencies.split_whitespace().rev().chain([file]) {
            if seen.insert(file) {
                files.push(file.to_owned());
            }
        }
    }
    files
}

/// modprobe's name of a module's file.
fn module_name(file: &str) -> String {
    plain_name(file).trim_end_matches(".ko").replace('-', "_")
}

/// The file's name without folder and compression suffix.
fn plain_name(file: &str) -> &str {
    file.rsplit('/')
        .next()
        .unwrap_or(file)
        .trim_end_matches(".xz")
        .trim_end_matches(".zst")
        .trim_end_matches(".gz")
}

fn at<E: Into<Source>>(path: &Path) -> impl FnOnce(E) -> Error {
    |source| Error::new(path.display().to_string()).because(source)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    const INDEX: &str = "\
kernel/fs/ext4/ext4.ko: kernel/fs/jbd2/jbd2.ko kernel/lib/crc16.ko
kernel/drivers/nvme/host/nvme-core.ko.xz:
kernel/drivers/nvme/host/nvme.ko.xz: kernel/drivers/nvme/host/nvme-core.ko.xz
kernel/arch/x86/crypto/crc32c-intel.ko:
";

    #[test]
    fn modules_follow_their_dependencies() {
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

    #[test]
    fn packed_modules_are_unpacked() {
        let folder = tempfile::tempdir().unwrap();
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(b"\x7fELF and so on").unwrap();
        let packed = folder.path().join("a.ko.gz");
        fs::write(&packed, gzip.finish().unwrap()).unwrap();
        fs::write(folder.path().join("b.ko"), "\x7fELF too").unwrap();
        fs::write(
            folder.path().join("modules.dep"),
            "b.ko: a.ko.gz\na.ko.gz:\n",
        )
        .unwrap();
        let found = modules_with_dependencies(folder.path(), &["b"]).unwrap();
        let found: Vec<_> = found
            .iter()
            .map(|module| (module.file.as_str(), module.content.as_slice()))
            .collect();
        assert_eq!(
            found,
            [
                ("a.ko", &b"\x7fELF and so on"[..]),
                ("b.ko", b"\x7fELF too")
            ]
        );
        fs::write(&packed, b"\x1f\x8b and no more").unwrap();
        let error = modules_with_dependencies(folder.path(), &["b"]).unwrap_err();
        assert!(error.to_string().contains("a.ko.gz"), "{error}");
    }
}
