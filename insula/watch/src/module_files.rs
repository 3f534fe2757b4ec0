//! Files of loadable modules.
//!
//! A node's root is the node's to write: so links in a folder of modules lead nowhere outside of its
//! root, only regular files are read, and all is limited.

use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Limits on what is looked at: entries of all folders, folders in each other, files of one name.
const ENTRIES_MAX: usize = 1 << 16;
const DEPTH_MAX: usize = 16;
const SAME_NAME_MAX: usize = 4;
/// Limit on a file, in bytes: the largest modules of distributions have less than 30 MiB.
const SIZE_MAX: u64 = 64 << 20;
/// In the name of a module's file, perhaps before that of a compression.
const EXTENSION: &str = ".ko";

/// Files of modules, by the modules' names.
#[derive(Debug, Default)]
pub struct ModuleFiles {
    roots: Vec<OwnedFd>,
    /// Index of a root, and path in it.
    files: HashMap<String, Vec<(usize, PathBuf)>>,
}

impl ModuleFiles {
    /// Finds the files in a folder and those in it, in addition to what was found before. `folder` is
    /// a path in `root`, which no link leads out of. What cannot be read is left out.
    pub fn add(&mut self, root: &Path, folder: &Path) {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let Ok(root) = nix::fcntl::open(root, flags, nix::sys::stat::Mode::empty()) else {
            return;
        };
        let index = self.roots.len();
        self.roots.push(root);
        let mut open = vec![(folder.to_owned(), DEPTH_MAX)];
        let mut left = ENTRIES_MAX;
        while let Some((folder, depth)) = open.pop() {
            // It may have been removed, or is none of the root's.
            for (name, is_folder) in self.entries(index, &folder, left).unwrap_or_default() {
                left -= 1;
                let path = folder.join(&name);
                match is_folder {
                    true if depth > 1 => open.push((path, depth - 1)),
                    true => {}
                    false => self.insert(&name, index, path),
                }
            }
        }
    }

    /// Contents of the files that can be those of a module; none that cannot be read.
    pub(crate) fn read(&self, module: &str) -> impl Iterator<Item = Vec<u8>> {
        let files = self.files.get(module).into_iter().flatten();
        files.filter_map(|(root, path)| self.read_file(*root, path).ok())
    }

    fn insert(&mut self, name: &str, root: usize, path: PathBuf) {
        if let Some(module) = module_of(name) {
            let files = self.files.entry(module).or_default();
            if files.len() < SAME_NAME_MAX {
                files.push((root, path));
            }
        }
    }

    /// Names in a folder, at most so many, and whether each is a folder.
    fn entries(
        &self,
        root: usize,
        folder: &Path,
        limit: usize,
    ) -> Result<Vec<(String, bool)>, Errno> {
        let folder = self.open(root, folder, OFlag::O_DIRECTORY)?;
        let mut entries = Vec::new();
        for entry in Dir::from_fd(folder)?.iter().take(limit) {
            let entry = entry?;
            let is_folder = match entry.file_type() {
                Some(Type::Directory) => true,
                Some(Type::File) => false,
                _ => continue,
            };
            match entry.file_name().to_str() {
                Ok("." | "..") | Err(_) => {}
                Ok(name) => entries.push((name.to_owned(), is_folder)),
            }
        }
        Ok(entries)
    }

    fn read_file(&self, root: usize, path: &Path) -> io::Result<Vec<u8>> {
        // What is no regular file is opened without waiting.
        let file = File::from(self.open(root, path, OFlag::O_NONBLOCK)?);
        let metadata = file.metadata()?;
        if !metadata.is_file() || metadata.len() > SIZE_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut bytes = Vec::new();
        file.take(SIZE_MAX).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn open(&self, root: usize, path: &Path, flags: OFlag) -> Result<OwnedFd, Errno> {
        let root = self.roots.get(root).ok_or(Errno::ENOENT)?;
        let resolve = ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS;
        let how = OpenHow::new()
            .flags(flags | OFlag::O_RDONLY | OFlag::O_CLOEXEC)
            .resolve(resolve);
        openat2(root, path, how)
    }
}

/// The module that a file of this name contains, if it is one's: the kernel writes its dashes as
/// underscores.
fn module_of(file: &str) -> Option<String> {
    let (name, compression) = file.split_once(EXTENSION)?;
    let is_file = compression.is_empty() || compression.starts_with('.');
    (is_file && !name.is_empty()).then(|| name.replace('-', "_"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn names_are_the_kernels() {
        assert_eq!(module_of("virtio-rng.ko.xz").as_deref(), Some("virtio_rng"));
        assert_eq!(module_of("fuse.ko").as_deref(), Some("fuse"));
        for other in ["modules.dep", ".ko", "a.kob", "a.k"] {
            assert_eq!(module_of(other), None, "{other}");
        }
    }

    #[test]
    fn nothing_outside_of_the_root_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        fs::create_dir_all(root.join("usr/lib/modules/1/kernel")).unwrap();
        fs::create_dir_all(folder.path().join("modules")).unwrap();
        fs::write(folder.path().join("modules/secret.ko"), "secret").unwrap();
        let modules = root.join("usr/lib/modules/1");
        fs::write(modules.join("kernel/a-b.ko.xz"), "first").unwrap();
        fs::write(modules.join("a_b.ko"), "second").unwrap();
        symlink(folder.path().join("modules"), modules.join("kernel/out")).unwrap();
        symlink("../../../../../../modules/secret.ko", modules.join("c.ko")).unwrap();
        symlink("usr/lib", root.join("lib")).unwrap();
        nix::unistd::mkfifo(&modules.join("d.ko"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let mut files = ModuleFiles::default();
        files.add(&root, Path::new("lib/modules/1"));
        files.add(&root, Path::new("lib/modules/2"));
        let mut found: Vec<_> = files.read("a_b").collect();
        found.sort();
        assert_eq!(found, [b"first".to_vec(), b"second".to_vec()]);
        for other in ["secret", "c", "d", "../a_b"] {
            assert_eq!(files.read(other).count(), 0, "{other}");
        }
    }
}
