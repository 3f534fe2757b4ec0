//! The programs of e2fsprogs.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::{Mutex, OnceLock};

use crate::block::recorder::Recorder;
use crate::ext4::Ext4;

/// Set by `make test`, which has installed what `scripts/deps` names: then no test must be skipped.
const FETCHED: &str = "INSULA_FETCHED";

/// Whether e2fsprogs are here; prints a note if not.
pub(super) fn are_here() -> bool {
    static HERE: OnceLock<bool> = OnceLock::new();
    *HERE.get_or_init(|| {
        let found = Command::new(program("mke2fs")).arg("-V").output().is_ok();
        if !found {
            assert!(std::env::var_os(FETCHED).is_none(), "no e2fsprogs");
            println!("skipped: no e2fsprogs");
        }
        found
    })
}

/// They are not in the path of users.
fn program(name: &str) -> PathBuf {
    let folder = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    let found = folder.into_iter().map(|folder| folder.join(name));
    let mut found = found.filter(|path| path.exists());
    found.next().unwrap_or_else(|| name.into())
}

/// An image in a file, for programs.
pub(super) struct File(tempfile::NamedTempFile);

impl File {
    pub(super) fn new(content: &[u8]) -> Self {
        use std::os::unix::fs::FileExt;
        let file = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
        file.as_file().set_len(content.len() as u64).unwrap();
        for (index, part) in content.chunks(4096).enumerate() {
            if part.iter().any(|byte| *byte != 0) {
                let at = index as u64 * 4096;
                file.as_file().write_all_at(part, at).unwrap();
            }
        }
        Self(file)
    }

    pub(super) fn run(&self, name: &str, arguments: &[&str]) -> Output {
        let mut command = Command::new(program(name));
        command.args(arguments).arg(self.0.path());
        command.output().unwrap()
    }

    pub(super) fn content(&self) -> Vec<u8> {
        std::fs::read(self.0.path()).unwrap()
    }

    /// Fails unless e2fsck finds nothing.
    pub(super) fn is_clean(&self) -> Result<(), String> {
        let found = self.run("e2fsck", &["-f", "-n"]);
        match found.status.code() {
            Some(0) => Ok(()),
            code => Err(format!("e2fsck -fn: {code:?}\n{}", text(&found))),
        }
    }

    /// Has e2fsck replay the journal, and free what was open. Fails if it finds more to do.
    pub(super) fn recover(&self) -> Result<(), String> {
        let found = self.run("e2fsck", &["-p"]);
        match found.status.code() {
            Some(0 | 1) => self.is_clean(),
            code => Err(format!("e2fsck -p: {code:?}\n{}", text(&found))),
        }
    }
}

pub(super) fn text(output: &Output) -> String {
    let bytes = [&*output.stdout, &*output.stderr].concat();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Variants of file systems: options of mke2fs. All that are supported are in one of them.
pub(super) const VARIANTS: [&str; 5] = [
    "-b 4096 -N 512",
    "-b 1024 -N 512",
    "-b 1024 -N 512 -g 2048 -O ^metadata_csum,^64bit,^dir_index",
    "-b 2048 -N 512 -O ^metadata_csum,uninit_bg,^flex_bg",
    "-b 1024 -N 512 -O metadata_csum_seed,^64bit,^resize_inode",
];

/// Returns the options of a variant.
pub(super) fn options(variant: usize) -> Vec<&'static str> {
    VARIANTS[variant].split(' ').collect()
}

/// Returns the block size of a variant.
pub(super) fn block_size(variant: usize) -> usize {
    options(variant)[1].parse().unwrap()
}

/// Makes a file system.
pub(super) fn make(bytes: usize, options: &[&str]) -> File {
    let file = File::new(&vec![0; bytes]);
    let arguments = [&["-q", "-F", "-t", "ext4", "-E", "root_owner=0:0"], options].concat();
    let made = file.run("mke2fs", &arguments);
    assert!(made.status.success(), "{}", text(&made));
    file
}

/// Returns an empty file system, without `lost+found`.
pub(super) fn empty(variant: usize) -> Vec<u8> {
    static MADE: Mutex<[Vec<u8>; VARIANTS.len()]> =
        Mutex::new([const { Vec::new() }; VARIANTS.len()]);
    let mut made = MADE.lock().unwrap();
    if made[variant].is_empty() {
        use crate::files::FileSystem;
        let device = Recorder::new(&make(16 << 20, &options(variant)).content());
        let mut system = Ext4::mount(device, 4 << 20).unwrap();
        let found = system.lookup(system.root(), b"lost+found").unwrap();
        system.unlink(system.root(), b"lost+found").unwrap();
        system.free(found).unwrap();
        made[variant] = system.unmount().unwrap().content();
    }
    made[variant].clone()
}
