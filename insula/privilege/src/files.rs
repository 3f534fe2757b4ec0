//! Files that a device server may access (Landlock).

use std::path::Path;

use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreated,
    RulesetCreatedAttr, path_beneath_rules,
};

use super::RestrictError;

/// Rules of Linux 6.2, which tell truncating from writing; older kernels enforce those that they
/// know. Later rules would refuse ioctls on block devices.
const RULES: ABI = ABI::V3;

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

/// Rules that allow, beside the program and its libraries, only the file `disk`.
pub(super) fn only_disk(
    program: &Path,
    disk: &Path,
    read_only: bool,
) -> Result<RulesetCreated, RestrictError> {
    let read = AccessFs::from_read(RULES);
    let access = match read_only {
        true => AccessFs::ReadFile.into(),
        false => AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::Truncate,
    };
    let libraries = LIBRARIES.iter().map(Path::new).chain([program]);
    let rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(RULES))?
        .create()?
        .add_rules(path_beneath_rules(libraries, read))?
        .add_rules(path_beneath_rules([disk], access))?;
    Ok(rules)
}
