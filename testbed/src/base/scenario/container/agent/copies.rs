//! Files to nodes, from them, and between them.

use std::fs;
use std::path::Path;

use super::{CLIENT, CONTENT, SERVER, script, sum};
use crate::base::Finding;
use crate::base::support::insula_command::{assert_equal, insula, try_insula};

/// Folder of the copied files in the base, and in nodes.
const HERE: &str = "/tmp/copied";
const THERE: &str = "/tmp/copied";

/// A folder comes back from a node unchanged, and what cannot be copied is reported.
pub(super) fn to_and_from(node: &str) -> Result<(), Finding> {
    let (there, content) = (format!("{node}:{THERE}"), format!("{node}:{THERE}/."));
    insula(&["cp", CONTENT, &there])?;
    let test = "test -x /tmp/copied/bin/busybox && /tmp/copied/bin/echo works";
    assert_equal(
        "the copied program",
        &script(node, &[], test)?.1.as_str(),
        &"works\n",
    )?;
    fs::create_dir(HERE)?;
    insula(&["cp", &content, HERE])?;
    assert_equal("the returned folder", &tree(HERE)?, &tree(CONTENT)?)?;
    let version = Path::new(HERE).join("version");
    insula(&["cp", &format!("{node}:/proc/version"), HERE])?;
    let (_, wanted, _) = script(node, &[], "cat /proc/version")?;
    assert_equal(
        "a file of its kernel",
        &fs::read_to_string(version)?,
        &wanted,
    )?;
    fs::remove_dir_all(HERE)?;

    try_insula(&["cp", &format!("{node}:/none"), HERE])?.refused(1, &["/none", "No such file"])?;
    try_insula(&["cp", "/etc/hostname", &format!("{node}:/none/x/")])?.refused(1, &["/none/x/"])?;
    try_insula(&["cp", "/none", &there])?.refused(1, &["/none", "No such file"])?;
    try_insula(&["cp", "nobody:/etc/hostname", HERE])?.refused(1, &["nobody"])?;
    try_insula(&["cp", "/etc/hostname", HERE])?.refused(1, &["nothing was copied"])?;
    let left = script(node, &[], "ls -a /tmp/copied /tmp")?.1;
    Finding::unless(!left.contains(".insula-cp"), || {
        format!("left there: {left}")
    })
}

/// Copies between two nodes.
pub(super) fn between_nodes() -> Result<(), Finding> {
    let (from, to) = (format!("{}:/data", SERVER.1), format!("{CLIENT}:/run/data"));
    insula(&["cp", &from, &to])?;
    let (_, output, _) = script(CLIENT, &[], "sha256sum < /run/data")?;
    assert_equal("the file in the other node", &output, &sum()?)
}

/// Content of a folder: each path with its mode, its content or link target.
fn tree(folder: &str) -> Result<Vec<(String, u32, Vec<u8>)>, Finding> {
    use std::os::unix::ffi::OsStringExt;
    use std::os::unix::fs::MetadataExt;

    let mut found = Vec::new();
    let mut left = vec![Path::new(folder).to_owned()];
    while let Some(path) = left.pop() {
        for entry in fs::read_dir(&path)? {
            let path = entry?.path();
            let (metadata, name) = (path.symlink_metadata()?, path.strip_prefix(folder)?);
            let content = match metadata.file_type() {
                kind if kind.is_symlink() => fs::read_link(&path)?.into_os_string().into_vec(),
                kind if kind.is_dir() => Vec::new(),
                _ => fs::read(&path)?,
            };
            if metadata.is_dir() {
                left.push(path.clone());
            }
            found.push((name.display().to_string(), metadata.mode(), content));
        }
    }
    found.sort();
    Ok(found)
}
