//! Nodes whose root is an image in memory, shared by all of them.

use std::fs;
use std::net::TcpStream;
use std::process::Command;

use super::network::network_gone;
use super::{CONTENT, ROOT, outside, script, sum};
use crate::base::support::insula_command::{
    assert_equal, insula, insula_json, text, try_insula, wait_for,
};
use crate::base::support::supervisor_process;
use crate::base::{Context, Finding};
use crate::host::payload::equipment::MODULES_PATH;

/// File of the image.
const IMAGE: &str = "/tmp/root.erofs";
/// Memory of a node.
const MEMORY: (&str, u64) = ("256M", 256 << 20);
/// Nodes with this root, one for each kernel.
const NODES: [&str; 2] = ["on-6.1", "on-6.12"];
/// File that describes the second of them, in the image's folder, and its content.
const FILE: &str = "/tmp/roots.toml";
const DESCRIBED: &str = r#"
[nodes."on-6.12"]
image = "described"
program = ["/bin/sh", "-c", "echo the program has started; exec sleep 1000000"]
memory = "256M"
rootfs = "root.erofs"
disk = "root.erofs,ro"
hostname = "shop.example"
ip = "10.78.0.9"
publish = ["127.0.0.1:8081:80", "8083:8000"]
"#;
/// Serves files at that port.
const SERVES: &str = "busybox httpd -p 8000 -h /";
/// Output of its program.
const STARTED: &str = "the program has started";
const ADDRESS: &str = "10.78.0.9";
const PORT: &str = "127.0.0.1:8081";
const HOST: &str = "shop.example";
/// Unit of allocated memory.
const GRANULE: u64 = 2 << 20;
/// Size of the header before the image.
const HEAD_SIZE: u64 = 8 << 10;
/// Page cache that may come and go while a file is read, in KiB; the file is larger by far.
const CACHE_MAX_KIB: i64 = 1024;

/// Nodes of both kernels on one image, which is in memory once; it is freed with the last of them.
pub(super) fn two_nodes(context: &Context) -> Result<(), Finding> {
    let without = allocated()?;
    let described = image_table(context)?;
    fs::write(FILE, &described)?;
    insula(&["up", "--file", FILE])?;
    make_image()?;
    let no_image = format!("{ROOT}/data");
    try_insula(&["run", "--image", "image-6.1", "--rootfs", &no_image])?
        .refused(1, &[&no_image, "EROFS", "nothing was touched"])?;
    let before = allocated()?;
    let image = (HEAD_SIZE + fs::metadata(IMAGE)?.len()).next_multiple_of(GRANULE);
    let [first, second] = NODES;
    let size = ["--memory", MEMORY.0];
    let run = [
        "run",
        "--image",
        "image-6.1",
        "--name",
        first,
        "--rootfs",
        IMAGE,
    ];
    insula(&[&run[..], &size].concat())?;
    assert_equal(
        "memory allocated",
        &(allocated()? - before),
        &(MEMORY.1 + image),
    )?;
    fs::write(FILE, described + DESCRIBED)?;
    insula(&["up", "--file", FILE])?;
    let both = 2 * MEMORY.1 + image;
    assert_equal("memory allocated", &(allocated()? - before), &both)?;
    let shared =
        |node: &str| Ok::<_, Finding>(insula_json(&["inspect", node])?[0]["shared_memory"].clone());
    assert_equal("where the image lies", &shared(first)?, &shared(second)?)?;
    as_described(second).map_err(|error| error.when("it was described in a file"))?;
    outside::is_reached_from(second)?;
    insula(&["exec", second, "--", "sh", "-c", SERVES])?;
    outside::keeps_clients_addresses(second, 8083)?;
    outside::resolves_names(second, (second, ADDRESS))?;
    for node in NODES {
        reads(node).map_err(|error| error.when(&format!("of {node}")))?;
    }
    assert_equal(
        "writing",
        &script(first, &[], "echo new > /made && cat /made")?
            .1
            .as_str(),
        &"new\n",
    )?;
    assert_equal("seeing it", &script(second, &[], "test -e /made")?.0, &1)?;

    // A restarted node has the same image.
    insula(&["restart", first])?;
    reads(first).map_err(|error| error.when("it was restarted"))?;
    assert_equal("its host name", &host_name(first)?.as_str(), &first)?;
    assert_equal(
        "the overlay after a restart",
        &script(first, &[], "test -e /made")?.0,
        &1,
    )?;
    insula(&["rm", "--force", first])?;
    assert_equal(
        "memory of one",
        &(allocated()? - before),
        &(MEMORY.1 + image),
    )?;
    assert_equal(
        "file read by the other",
        &script(second, &[], "sha256sum < /data")?.1,
        &sum()?,
    )?;
    // With its supervisor killed, nobody else takes back what the base has for its network.
    supervisor_process::kill(second)?;
    insula(&["rm", "--force", second])?;
    network_gone()?;
    outside::has_no_tables()?;
    insula(&["down", "--images", "--file", FILE])?;
    wait_for("all memory to be back", || {
        Ok((allocated()? == without).then_some(()))
    })?;
    network_gone()?;
    fs::remove_file(FILE)?;
    Ok(fs::remove_file(IMAGE)?)
}

fn host_name(node: &str) -> Result<String, Finding> {
    let (_, name, _) = script(node, &[], "cat /proc/sys/kernel/hostname")?;
    Ok(name.trim().to_owned())
}

/// Its image, which is built as the file says.
fn image_table(context: &Context) -> Result<String, Finding> {
    let release = context.release("6.12")?;
    Ok(format!(
        "[images.described]\ninstalled = \"{release}\"\nagent = true\ncontent = \"{CONTENT}\"\n\
         module_folder = \"{MODULES_PATH}/{release}\"\n"
    ))
}

/// The node is as its file says, and a second `up` changes nothing.
fn as_described(node: &str) -> Result<(), Finding> {
    let inspected = &insula_json(&["inspect", node])?[0];
    assert_equal("its address", &text(&inspected["address"]), &ADDRESS.into())?;
    assert_equal("its host name", &host_name(node)?.as_str(), &HOST)?;
    wait_for("its port", || Ok(TcpStream::connect(PORT).ok()))?;
    wait_for("its disk", || {
        let (status, ..) = script(node, &[], "test -b /dev/vda")?;
        Ok((status == 0).then_some(()))
    })?;
    wait_for("its program", || {
        Ok(insula(&["logs", node])?.contains(STARTED).then_some(()))
    })?;
    let again = insula_json(&["up", "--file", FILE, "--json"])?;
    for kind in ["nodes", "images"] {
        let action = text(&again[kind][0]["action"]);
        assert_equal("action of the second `up`", &action, &"keep".into())?;
    }
    Ok(())
}

fn make_image() -> Result<(), Finding> {
    let made = Command::new("mkfs.erofs")
        .args(["-Enoinline_data", IMAGE, ROOT])
        .output()?;
    Finding::unless(made.status.success(), || {
        format!("mkfs.erofs: {}", String::from_utf8_lossy(&made.stderr))
    })
}

/// Memory of nodes and images, in bytes.
fn allocated() -> Result<u64, Finding> {
    let allocated =
        insula_json(&["machine", "info", "--json"])?["memory"]["allocated_bytes"].as_u64();
    allocated.ok_or_else(|| Finding::new("the allocated memory is not listed"))
}

/// Its reads are correct, and are of the image in place: its kernel caches no copy.
fn reads(node: &str) -> Result<(), Finding> {
    let cached =
        "while read name size rest; do test $name = Cached: && echo $size; done < /proc/meminfo";
    let read = format!(
        "cached() {{ {cached}; }}; a=$(cached); sha256sum < /data; echo $(($(cached) - a))"
    );
    let (_, output, _) = script(node, &[], &read)?;
    let (sum_read, grown) = output.trim_end().rsplit_once('\n').unwrap_or_default();
    assert_equal("file read", &sum_read, &sum()?.trim_end())?;
    let grown: i64 = grown.parse()?;
    Finding::unless(grown < CACHE_MAX_KIB, || {
        format!("its page cache has grown by {grown} KiB")
    })
}
