//! What keeps a container from being moved is told by `insula move --check`, before anything is done.

use super::{NAME, image_name, wait_for_line};
use crate::base::Finding;
use crate::base::support::insula_command::{insula, try_insula};

/// A container that CRIU cannot dump.
const HELD: &str = "held";
/// Has a device and an io_uring open, and a child with a lock on a file that it has of its parent.
const PROGRAM: &str = r#"
import ctypes, fcntl, os, stat, time
locked, own = [open(f"/tmp/{name}", "w") for name in ("locked", "own")]
# A lock of the process that has opened the file goes with it.
fcntl.lockf(own, fcntl.LOCK_EX)
done = os.pipe()
if os.fork() == 0:
    fcntl.lockf(locked, fcntl.LOCK_EX)
    os.write(done[1], b"x")
    time.sleep(1000)
os.read(done[0], 1)
os.mknod("/tmp/kmsg", stat.S_IFCHR | 0o600, os.makedev(1, 11))
device = os.open("/tmp/kmsg", os.O_WRONLY)
libc = ctypes.CDLL(None, use_errno=True)
ring = libc.syscall(425, 4, ctypes.create_string_buffer(120))
print("open" if ring >= 0 else os.strerror(ctypes.get_errno()), flush=True)
time.sleep(1000)
"#;
/// A node whose kernel saves no states by XSAVE, so that no program can use AVX there.
const PLAIN: &str = "plain";

pub(super) fn play(source: &str, target: &str) -> Result<(), Finding> {
    let start = ["exec", "--container", HELD, "-d", source, "--"];
    insula(&[&start[..], &["python3", "-c", PROGRAM]].concat())?;
    wait_for_line(HELD, "open")?;
    let open = [
        "[io_uring]",
        "the device /tmp/kmsg",
        "open in `python3`",
        "a lock on /tmp/locked",
    ];
    for words in [
        &["move", "--check", HELD, target][..],
        &["move", HELD, target],
    ] {
        let answer = try_insula(words)?;
        answer.refused(1, &[&open[..], &["it was left as it is"]].concat())?;
        let told = &answer.error_output;
        Finding::unless(!told.contains("/tmp/own"), || told.clone())?;
    }
    insula(&["rm", "--force", HELD])?;
    less_processor(target)
}

fn less_processor(version: &str) -> Result<(), Finding> {
    let image = image_name(version);
    let run = [
        "run",
        "--image",
        &image,
        "--name",
        PLAIN,
        "--network",
        "--rootfs",
        "/",
    ];
    insula(&[&run[..], &["--overlay", "--append", "noxsave"]].concat())?;
    let missing = ["the node 'plain' lacks", "osxsave", "saved AVX"];
    try_insula(&["move", "--check", NAME, PLAIN])?.refused(1, &missing)?;
    try_insula(&["move", NAME, PLAIN])?.refused(1, &missing)?;
    insula(&["rm", "--force", PLAIN]).map(drop)
}
