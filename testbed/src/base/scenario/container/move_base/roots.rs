//! Containers of the base in a root of their own, also as they move to a node that has the same one.

use std::fs;
use std::path::Path;

use super::BASE;
use crate::base::Finding;
use crate::base::scenario::container::move_linux::wait_for_line;
use crate::base::support::insula_command::{
    assert_equal, insula, insula_json, text, try_insula, wait_for,
};

/// A folder with little more than busybox.
const ROOT: &str = "/run/root-of-second";
/// A node in that folder, and a container.
const NODE: &str = "folder";
const NAME: &str = "counter";
/// Tells numbers, one after the other.
const COUNT: &str = "i=0; while :; do echo $i; i=$((i+1)); /bin/busybox sleep 0.1; done";

/// Containers of the base without any node: output and status, a root of their own, the world outside.
pub(super) fn play() -> Result<(), Finding> {
    let on_base = |name, more: &[&str], program: &[&str]| {
        let exec = ["exec", "--container", name];
        insula(&[&exec[..], more, &["base", "--"], program].concat())
    };
    let output = on_base("first", &[], &["sh", "-c", "echo $$ $(hostname)"])?;
    assert_equal("its output", &output.as_str(), &"1 first\n")?;
    assert_equal("its log", &insula(&["logs", "first"])?, &output)?;
    let found = &insula_json(&["ps", "--json"])?[0];
    assert_equal("its name", &found["name"], &"first".into())?;
    assert_equal("its place", &found["node"], &BASE.into())?;
    assert_equal("its status", &found["exit_code"], &0.into())?;
    insula(&["rm", "first"])?;

    make_root()?;
    let listed = on_base("second", &["--rootfs", ROOT], &["/bin/busybox", "ls", "/"])?;
    let listed: Vec<_> = listed.split_whitespace().collect();
    let expected = ["bin", "dev", "proc", "run", "sys", "tmp"];
    assert_equal("its root", &listed.as_slice(), &&expected[..])?;
    insula(&["rm", "second"])?;

    let exec = ["exec", "--container"];
    try_insula(&[&exec[..], &["base", "base", "--", "true"]].concat())?
        .refused(125, &["that of the base"])?;
    let lost = ["other", "--rootfs", "/no/such", "base", "--", "true"];
    try_insula(&[&exec[..], &lost].concat())?.refused(125, &["/no/such", "root"])?;
    let missing = ["third", "base", "--", "/no/such"];
    try_insula(&[&exec[..], &missing].concat())?.refused(127, &[])?;
    insula(&["rm", "third"]).map(drop)
}

fn make_root() -> Result<(), Finding> {
    let root = Path::new(ROOT);
    fs::create_dir_all(root.join("bin"))?;
    for folder in ["dev", "proc", "run", "sys", "tmp"] {
        fs::create_dir_all(root.join(folder))?;
    }
    fs::copy("/usr/sbin/busybox-testbed", root.join("bin/busybox"))?;
    Ok(())
}

/// A container moves to a node whose root is the same folder, and back; to no other one.
pub(super) fn moves(image: &str, other: &str) -> Result<(), Finding> {
    let run = ["run", "--image", image, "--name", NODE, "--cpus", "1"];
    insula(
        &[
            &run[..],
            &["--memory", "256M", "--network", "--rootfs", ROOT],
        ]
        .concat(),
    )?;
    let exec = ["exec", "--container", NAME, "-d", "--rootfs", ROOT, BASE];
    insula(&[&exec[..], &["--", "/bin/busybox", "sh", "-c", COUNT]].concat())?;
    wait_for_line(NAME, "3")?;
    try_insula(&["move", NAME, other])?.refused(1, &["root"])?;
    for to in [NODE, BASE] {
        println!("{}", insula(&["move", NAME, to])?.trim_end());
        let found = &insula_json(&["inspect", NAME])?[0];
        assert_equal("its place", &text(&found["node"]).as_str(), &to)?;
        let before = insula(&["logs", NAME])?.lines().count();
        wait_for_line(NAME, &(before + 3).to_string())?;
    }
    let log = insula(&["logs", NAME])?;
    let numbers: Vec<_> = (0..log.lines().count())
        .map(|one| one.to_string())
        .collect();
    assert_equal(
        "its log",
        &log.lines().collect::<Vec<_>>(),
        &numbers.iter().map(String::as_str).collect(),
    )?;
    insula(&["rm", "--force", NAME])?;
    insula(&["rm", "--force", NODE])?;
    wait_for("its node to have left the folder", || {
        let mounts = fs::read_to_string("/proc/self/mounts")?;
        Ok((!mounts.contains(ROOT)).then_some(()))
    })?;
    Ok(fs::remove_dir_all(ROOT)?)
}
