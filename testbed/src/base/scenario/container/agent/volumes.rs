//! Folders of the base that a node has beside its root: it writes to one, and only reads the other, whatever
//! its kernel does.

use std::fs;
use std::path::{Path, PathBuf};

use super::script;
use crate::base::Finding;
use crate::base::support::insula_command::{assert_equal, insula_json, try_insula};

/// The folders on the base.
pub(super) const FOLDER: &str = "/tmp/volumes";
/// Options of the node that has them.
pub(super) const OPTIONS: [&str; 4] = [
    "-v",
    "/tmp/volumes/shared:/mnt/shared",
    "--volume",
    "/tmp/volumes/given:/mnt/given:ro",
];
const TEXT: &str = "of the base\n";

pub(super) fn make_folders() -> Result<(), Finding> {
    for name in ["shared", "given/below"] {
        fs::create_dir_all(on_base(name))?;
    }
    fs::write(on_base("shared/file"), TEXT)?;
    Ok(fs::write(on_base("given/below/file"), TEXT)?)
}

fn on_base(name: &str) -> PathBuf {
    Path::new(FOLDER).join(name)
}

pub(super) fn play(node: &str) -> Result<(), Finding> {
    let shown = insula_json(&["inspect", node])?[0]["volumes"].clone();
    assert_equal("read-only volume", &shown[1]["read_only"], &true.into())?;
    for file in ["shared/file", "given/below/file"] {
        let (_, read, _) = script(node, &[], &format!("cat /mnt/{file}"))?;
        assert_equal(file, &read.as_str(), &TEXT)?;
    }
    let write = "echo 'of the node' > /mnt/shared/own";
    assert_equal("status of writing", &script(node, &[], write)?.0, &0)?;
    let own = fs::read_to_string(on_base("shared/own"))?;
    assert_equal("what the node wrote", &own.as_str(), &"of the node\n")?;
    is_only_read(node)
}

/// The node's kernel refuses to write; where it does not, the base does.
fn is_only_read(node: &str) -> Result<(), Finding> {
    let write = "echo bad > /mnt/given/own; echo bad > /mnt/given/below/file; \
                 rm /mnt/given/below/file; mkdir /mnt/given/folder; true";
    let remount = "/bin/busybox mount -o remount,rw /mnt/given && ! touch /mnt/given/own";
    for attempt in [write, &format!("{remount} && ({write})")] {
        let (status, _, errors) = script(node, &[], attempt)?;
        assert_equal("status", &status, &0)?;
        let refused = errors.matches("Read-only file system").count();
        Finding::unless(refused >= 4, || format!("not refused: {errors}"))?;
        let names = fs::read_dir(on_base("given"))?.count();
        assert_equal("names in the folder", &names, &1)?;
        let file = fs::read_to_string(on_base("given/below/file"))?;
        assert_equal("the file", &file.as_str(), &TEXT)?;
    }
    Ok(())
}

/// Volumes that cannot be, of a node of that image.
pub(super) fn refusals(image: &str) -> Result<(), Finding> {
    let with = |image, volume| ["run", "--image", image, "-v", volume];
    let none = try_insula(&with(image, "/tmp/none:/data"))?;
    none.refused(1, &["/tmp/none", "volume", "nothing was touched"])?;
    let file = try_insula(&with(image, "/etc/passwd:/data"))?;
    file.refused(1, &["/etc/passwd", "not a directory"])?;
    let relative = try_insula(&with(image, "/tmp:data"))?;
    relative.refused(2, &["FOLDER:MOUNT-POINT"])?;
    let twice = [&with(image, "/tmp:/data")[..], &["-v", "/etc:/data"]].concat();
    try_insula(&twice)?.refused(1, &["two volumes are to be at /data"])?;
    let quiet = try_insula(&with("lwk", "/tmp:/data"))?;
    quiet.refused(1, &["lightweight kernel", "--volume"])
}
