//! Files to nodes, from them, and between them.

use std::fs;
use std::path::Path;

use super::{CLIENT, CONTENT, Finding, SERVER, ask, assert_equal, insula, script, sum};

/// What is copied to and fro lies here in the base, and there in nodes.
const HERE: &str = "/tmp/copied";
const THERE: &str = "/tmp/copied";

/// A folder comes back from a node as it was sent, and what cannot be copied is told.
pub(super) fn to_and_from(node: &str) -> Result<(), Finding> {
    let (there, content) = (format!("{node}:{THERE}"), format!("{node}:{THERE}/."));
    insula(&["cp", CONTENT, &there])?;
    let test = "test -x /tmp/copied/bin/busybox && /tmp/copied/bin/echo works";
    assert_equal(
        "what runs there",
        &script(node, &[], test)?.1.as_str(),
        &"works\n",
    )?;
    fs::create_dir(HERE)?;
    insula(&["cp", &content, HERE])?;
    assert_equal("what came back", &tree(HERE)?, &tree(CONTENT)?)?;
    let version = Path::new(HERE).join("version");
    insula(&["cp", &format!("{node}:/proc/version"), HERE])?;
    let (_, wanted, _) = script(node, &[], "cat /proc/version")?;
    assert_equal(
        "a file of its kernel",
        &fs::read_to_string(version)?,
        &wanted,
    )?;
    fs::remove_dir_all(HERE)?;

    ask(&["cp", &format!("{node}:/none"), HERE])?.refused(1, &["/none", "No such file"])?;
    ask(&["cp", "/etc/hostname", &format!("{node}:/none/x/")])?.refused(1, &["/none/x/"])?;
    ask(&["cp", "/none", &there])?.refused(1, &["/none", "No such file"])?;
    ask(&["cp", "nobody:/etc/hostname", HERE])?.refused(1, &["nobody"])?;
    ask(&["cp", "/etc/hostname", HERE])?.refused(1, &["nothing was copied"])?;
    let left = script(node, &[], "ls -a /tmp/copied /tmp")?.1;
    Finding::unless(!left.contains(".insula-cp"), || {
        format!("left there: {left}")
    })
}

/// What one node has, another gets.
pub(super) fn between_nodes() -> Result<(), Finding> {
    let (from, to) = (format!("{}:/data", SERVER.1), format!("{CLIENT}:/run/data"));
    insula(&["cp", &from, &to])?;
    let (_, told, _) = script(CLIENT, &[], "sha256sum < /run/data")?;
    assert_equal("what the other got", &told, &sum()?)
}

/// What lies in a folder: each path with its mode, its content or what it leads to.
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
