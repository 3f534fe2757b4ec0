//! A file server with a file system on disk: what programs write there, Linux mounts.

use std::fs;
use std::process::Command;

use super::{FILES, NODE, SCRIPTS, SERVED, prints_the_same, there};
use crate::base::Finding;
use crate::base::support::insula_command::{assert_equal, insula};
use crate::base::support::virtio_modules::modprobe;

pub(super) const IMAGE: &str = "/tmp/served.ext4";
/// Where Linux mounts it.
const MOUNTED: &str = "/tmp/mounted";
/// Lists what there is, with modes, sizes, times, links and sums. Of the sparse file only the end is read:
/// an emulated machine takes minutes for the sum of its holes.
const LIST: &str = "find . -path ./lost+found -o -printf '%p %M %s %T@ %l\\n' | sort && \
                    find . -type f -size -64M -exec sha256sum {} + | sort && tail -c 4096 sparse | od -c";
/// Leaves something of each kind.
const LEAVE: &str = "cd /tmp/served && mkdir -m 700 lost+found && cp -a /etc/apt . && seq 1 100000 > numbers && ln -s numbers link && \
                     ln numbers other && truncate -s 3G sparse && echo end >> sparse && sync numbers";

pub(super) fn play() -> Result<(), Finding> {
    run("mke2fs", &["-q", "-t", "ext4", IMAGE, "48M"])?;
    let start = ["servers", "start", NODE, "file", "--", FILES];
    insula(&[&start[..], &["ext4", "--device", IMAGE]].concat())?;
    // Files in memory have no such folder; e2fsck wants one.
    insula(&there(SERVED, "rmdir /tmp/served/lost+found"))?;
    SCRIPTS.iter().try_for_each(prints_the_same)?;
    insula(&there(SERVED, LEAVE))?;
    let left = insula(&there(SERVED, &format!("cd /tmp/served && {LIST}")))?;
    insula(&["servers", "stop", NODE, "file"])?;
    run("e2fsck", &["-fn", IMAGE])?;
    assert_equal("what Linux finds", &by_linux(LIST)?, &left)?;
    Ok(fs::remove_file(IMAGE)?)
}

/// What a script prints of the image as Linux has it.
pub(super) fn by_linux(script: &str) -> Result<String, Finding> {
    modprobe(&["loop"])?;
    fs::create_dir_all(MOUNTED)?;
    run("mount", &["-o", "loop,ro", IMAGE, MOUNTED])?;
    let listed = run("/bin/bash", &["-c", &format!("cd {MOUNTED} && {script}")]);
    run("umount", &[MOUNTED])?;
    modprobe(&["-r", "loop"])?;
    listed
}

pub(super) fn run(program: &str, words: &[&str]) -> Result<String, Finding> {
    let answer = Command::new(program).args(words).output()?;
    Finding::unless(answer.status.success(), || {
        format!("{program} {words:?}: {answer:?}")
    })?;
    Ok(String::from_utf8_lossy(&answer.stdout).into_owned())
}
