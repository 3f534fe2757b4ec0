//! Files that a device server may access (Landlock).

use std::path::Path;

use insula_base::error::Error;
use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreated,
    RulesetCreatedAttr, RulesetError, path_beneath_rules,
};

use super::failed;

/// Rules of Linux 6.2, which tell truncating from writing; older kernels enforce those that they
/// know. Later rules would refuse ioctls on block devices.
const RULES: ABI = ABI::V3;

/// What fails if Landlock refuses.
pub(super) const GIVING_UP: &str = "giving up files";

/// Libraries and files that these read. A missing path needs no rule.
const LIBRARIES: &[&str] = &[
    "/usr",
    "/lib",
    "/lib32",
    "/lib64",
    "/nix/store",
    "/gnu/store",
    "/etc/ld.so.cache",
    "/etc/ld.so.preload",
    "/etc/gnutls",
    "/etc/ssl/openssl.cnf",
    // Limits of block devices.
    "/sys",
];

/// A disk, as files that its server needs.
#[derive(Clone, Copy, Debug)]
pub struct DiskAccess<'a> {
    /// The file or block device.
    pub path: &'a Path,
    /// Whether it is only read.
    pub read_only: bool,
    /// A file below it, which is only read.
    pub base: Option<&'a Path>,
}

/// Rules that allow, beside the program and its libraries, only the files of a disk.
pub(super) fn only_disk(program: &Path, disk: DiskAccess<'_>) -> Result<RulesetCreated, Error> {
    rules(program, disk).map_err(failed(GIVING_UP))
}

fn rules(program: &Path, disk: DiskAccess<'_>) -> Result<RulesetCreated, RulesetError> {
    let read = AccessFs::from_read(RULES);
    let access = match disk.read_only {
        true => AccessFs::ReadFile.into(),
        false => AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::Truncate,
    };
    let libraries = LIBRARIES.iter().map(Path::new).chain([program]);
    Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(RULES))?
        .create()?
        .add_rules(path_beneath_rules(libraries, read))?
        .add_rules(path_beneath_rules([disk.path], access))?
        .add_rules(path_beneath_rules(disk.base, AccessFs::ReadFile))
}
