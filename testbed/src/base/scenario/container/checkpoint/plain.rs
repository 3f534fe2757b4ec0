//! Plain CRIU, as anybody runs it: it restores what Insula has written, and what it has dumped Insula
//! restores, in a container that can be moved.

use std::net::TcpStream;
use std::process::Command;

use super::super::move_linux::state::{check, connect};
use super::{NEW, OLD, is_nowhere, on, place};
use crate::base::support::insula_command::{
    assert_equal, insula, insula_json, text, try_insula, wait_for,
};
use crate::base::{Context, Finding};
use crate::host::payload::equipment::CRIT_PATH;

/// Folder in the nodes.
const FOLDER: &str = "/var/tmp/plain";
/// The CRIU of a node's image, by hand.
const CRIU: &str = "criu() { /run/insula/criu/ld.so --library-path /run/insula/criu \
                    /run/insula/criu/criu \"$@\"; }";
/// The program that plain CRIU dumps: a parent and a child with an unread pipe between them, a file that
/// is written, a deleted one, and a door at which it tells that all is as it was.
const PROGRAM: &str = include_str!("plain.py");
const DOOR: u16 = 90;
/// Status with which it ends when it is asked to.
const STATUS: u8 = 7;
/// The container that it becomes.
const NAME: &str = "plain";

/// Returns the folder of processes that plain CRIU has dumped.
pub(super) fn play(context: &Context, ours: &str) -> Result<String, Finding> {
    reads(ours)?;
    restores_ours(ours)?;
    let folder = dumped()?;
    is_restored(context, &folder)?;
    Ok(folder)
}

/// `crit` reads all images that are no raw data, and writes them back byte for byte.
fn reads(ours: &str) -> Result<(), Finding> {
    let mut python = Command::new("python3");
    let python = python.env("PYTHONPATH", CRIT_PATH);
    let output = python.args(["-c", CRIT, ours]).output()?;
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    println!("crit reads {}", told.trim_end());
    Finding::unless(output.status.success(), || {
        format!("crit: {told}{}", String::from_utf8_lossy(&output.stderr))
    })
}

/// Reads a folder's images as `crit` does.
const CRIT: &str = r#"
import io, os, struct, sys
import pycriu
INVENTORY, COMMON = 0x58313116, 0x54564319
read = 0
for name in sorted(os.listdir(sys.argv[1])):
    content = open(os.path.join(sys.argv[1], name), "rb").read()
    first = struct.unpack("I", content[:4])[0] if len(content) >= 4 else 0
    if not name.endswith(".img") or first not in (INVENTORY, COMMON):
        continue
    image = pycriu.images.load(io.BytesIO(content))
    assert pycriu.images.dumps(image) == content, name
    if name == "pstree.img":
        processes = len(image["entries"])
    read += 1
print(f"{read} images, {processes} processes")
assert read > 20 and processes == 2
"#;

/// Plain CRIU restores a container that Insula has written, in a network of its own.
fn restores_ours(ours: &str) -> Result<(), Finding> {
    insula(&["cp", ours, &format!("{OLD}:{FOLDER}")])?;
    let description = std::fs::read_to_string(format!("{ours}/container.json"))?;
    let description: serde_json::Value = serde_json::from_str(&description)?;
    let output = text(&description["output"]);
    let restore = format!(
        "{CRIU}; cd {FOLDER}; (cd {FOLDER} && sha256sum --quiet --check SHA256SUMS); ip link set lo up; \
         mkdir -p /run/plain; mount --bind / /run/plain; \
         criu restore -D {FOLDER} -o restore.log -v2 --tcp-established --file-locks --link-remap \
         --manage-cgroups=ignore --root /run/plain --restore-detached --pidfile {FOLDER}/pid \
         --inherit-fd 'fd[3]:network' --inherit-fd 'fd[1]:{output}' \
         3</proc/self/ns/net >{FOLDER}/output || {{ cat {FOLDER}/restore.log; exit 1; }}; \
         umount /run/plain; python3 -c '{ASK}'"
    );
    let answer = insula(&[
        "exec", OLD, "--", "unshare", "--net", "bash", "-ec", &restore,
    ])?;
    assert_equal("its answer", &answer.trim(), &"ok")?;
    on(OLD, &format!("kill -9 $(cat {FOLDER}/pid); rm -r {FOLDER}")).map(drop)
}

/// Asks the restored program whether all is as it was.
const ASK: &str = r#"
import socket
asked = socket.create_connection(("127.0.0.1", 82), 60)
asked.sendall(b"?")
print(asked.recv(1000).decode())
"#;

/// Plain CRIU dumps the program; its folder on the base. The file that it writes is on the other node, too.
fn dumped() -> Result<String, Finding> {
    on(NEW, &format!("mkdir {FOLDER} {FOLDER}.images"))?;
    let start = format!(
        "cd {FOLDER}; setsid python3 -c '{PROGRAM}' </dev/null >{FOLDER}/output 2>&1 & echo $! >/run/pid"
    );
    on(NEW, &start)?;
    wait_for("the program to be ready", || {
        let output = on(NEW, &format!("cat {FOLDER}/output"))?;
        Ok(output.contains("ready").then_some(()))
    })?;
    let dump = format!(
        "{CRIU}; criu dump --tree $(cat /run/pid) -D {FOLDER}.images -o dump.log -v2 \
         || {{ cat {FOLDER}.images/dump.log; exit 1; }}"
    );
    insula(&["exec", NEW, "--", "bash", "-ec", &dump])?;
    let (images, files) = (place("dumped"), place("files"));
    insula(&["cp", &format!("{NEW}:{FOLDER}.images"), &images])?;
    insula(&["cp", &format!("{NEW}:{FOLDER}"), &files])?;
    insula(&["cp", &files, &format!("{OLD}:{FOLDER}")])?;
    Ok(images)
}

/// It goes on as a container, is moved, in a long run also back, and ends as asked to.
fn is_restored(context: &Context, folder: &str) -> Result<(), Finding> {
    let import = ["restore", OLD, "--import", folder];
    try_insula(&import)?.refused(1, &["it has no name", "--name", "nothing was touched"])?;
    insula(&[&import[..], &["--name", NAME]].concat())?;
    let address = text(&insula_json(&["inspect", NAME])?[0]["address"]);
    check(&mut connect(&address, DOOR)?)?;
    let mut kept: TcpStream = connect(&address, DOOR)?;
    for &node in context.select(&[NEW][..], &[NEW, OLD]) {
        let moved = insula(&["move", NAME, node])?;
        println!("{}", moved.trim_end());
        check(&mut kept)?;
    }
    drop(kept);
    insula(&["stop", NAME])?;
    let status = &insula_json(&["inspect", NAME])?[0]["exit_code"];
    assert_equal("its status", status, &STATUS.into())?;
    insula(&["rm", NAME])?;
    [OLD, NEW]
        .iter()
        .try_for_each(|node| is_nowhere(node, NAME))
}
