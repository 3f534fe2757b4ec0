//! Nodes whose root is one image in memory.

use std::fs;
use std::net::TcpStream;
use std::process::Command;

use super::{
    CONTENT, Context, Finding, MODULES_PATH, ROOT, ask, assert_equal, insula, insula_json,
    network_gone, script, sum, text, wait_for,
};

/// The image.
const IMAGE: &str = "/tmp/root.erofs";
/// Memory of a node.
const MEMORY: (&str, u64) = ("256M", 256 << 20);
/// The nodes on it, one for each kernel.
const NODES: [&str; 2] = ["on-6.1", "on-6.12"];
/// The second of them in a file, in the image's folder, and what it has besides.
const FILE: &str = "/tmp/roots.toml";
const DESCRIBED: &str = r#"
[nodes."on-6.12"]
image = "described"
program = ["/bin/sh", "-c", "echo the program has begun; exec sleep 1000000"]
memory = "256M"
rootfs = "root.erofs"
disk = "root.erofs,ro"
ip = "10.78.0.9"
publish = "127.0.0.1:8081:80"
"#;
/// What its program says.
const BEGUN: &str = "the program has begun";
const ADDRESS: &str = "10.78.0.9";
const PORT: &str = "127.0.0.1:8081";
/// What memory is taken in.
const GRANULE: u64 = 2 << 20;
/// What lies before it.
const HEAD_SIZE: u64 = 8 << 10;
/// Page cache that may come and go while a file is read, in KiB; it is larger by far.
const CACHE_MAX_KIB: i64 = 1024;

/// Nodes of both kernels on one image, which lies in memory once; it goes with the last of them.
pub(super) fn two_nodes(context: &Context) -> Result<(), Finding> {
    let without = taken()?;
    let described = image_table(context)?;
    fs::write(FILE, &described)?;
    insula(&["up", "--file", FILE])?;
    make_image()?;
    let no_image = format!("{ROOT}/data");
    ask(&["run", "--image", "image-6.1", "--rootfs", &no_image])?
        .refused(1, &[&no_image, "EROFS", "nothing was touched"])?;
    let before = taken()?;
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
    assert_equal("memory taken", &(taken()? - before), &(MEMORY.1 + image))?;
    fs::write(FILE, described + DESCRIBED)?;
    insula(&["up", "--file", FILE])?;
    let both = 2 * MEMORY.1 + image;
    assert_equal("memory taken", &(taken()? - before), &both)?;
    let shared =
        |node: &str| Ok::<_, Finding>(insula_json(&["inspect", node])?[0]["shared_memory"].clone());
    assert_equal("where the image lies", &shared(first)?, &shared(second)?)?;
    as_described(second).map_err(|error| error.when("it was described in a file"))?;
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

    // Restarted, a node has the same image.
    insula(&["restart", first])?;
    reads(first).map_err(|error| error.when("it was restarted"))?;
    assert_equal(
        "what it forgot",
        &script(first, &[], "test -e /made")?.0,
        &1,
    )?;
    insula(&["rm", "--force", first])?;
    assert_equal("memory of one", &(taken()? - before), &(MEMORY.1 + image))?;
    assert_equal(
        "what the other reads",
        &script(second, &[], "sha256sum < /data")?.1,
        &sum()?,
    )?;
    insula(&["down", "--images", "--file", FILE])?;
    wait_for("all memory to be back", || {
        Ok((taken()? == without).then_some(()))
    })?;
    network_gone()?;
    fs::remove_file(FILE)?;
    Ok(fs::remove_file(IMAGE)?)
}

/// Its image, which is built from the file.
fn image_table(context: &Context) -> Result<String, Finding> {
    let release = context.release("6.12")?;
    Ok(format!(
        "[images.described]\ninstalled = \"{release}\"\nagent = true\ncontent = \"{CONTENT}\"\n\
         module_folder = \"{MODULES_PATH}/{release}\"\n"
    ))
}

/// It has what its file says, and stays what it is.
fn as_described(node: &str) -> Result<(), Finding> {
    let inspected = &insula_json(&["inspect", node])?[0];
    assert_equal("its address", &text(&inspected["address"]), &ADDRESS.into())?;
    wait_for("its port", || Ok(TcpStream::connect(PORT).ok()))?;
    wait_for("its disk", || {
        let (status, ..) = script(node, &[], "test -b /dev/vda")?;
        Ok((status == 0).then_some(()))
    })?;
    wait_for("its program", || {
        Ok(insula(&["logs", node])?.contains(BEGUN).then_some(()))
    })?;
    let again = insula_json(&["up", "--file", FILE, "--json"])?;
    for kind in ["nodes", "images"] {
        let deed = text(&again[kind][0]["deed"]);
        assert_equal("what is done again", &deed, &"keep".into())?;
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

/// Bytes of memory that nodes and images have.
fn taken() -> Result<u64, Finding> {
    let taken = insula_json(&["machine", "info", "--json"])?["memory"]["taken_bytes"].as_u64();
    taken.ok_or_else(|| Finding::new("nothing is told of the memory taken"))
}

/// What it reads is right, and read where it lies: its kernel keeps no copy.
fn reads(node: &str) -> Result<(), Finding> {
    let cached =
        "while read name size rest; do test $name = Cached: && echo $size; done < /proc/meminfo";
    let read = format!(
        "cached() {{ {cached}; }}; a=$(cached); sha256sum < /data; echo $(($(cached) - a))"
    );
    let (_, told, _) = script(node, &[], &read)?;
    let (told_sum, grown) = told.trim_end().rsplit_once('\n').unwrap_or_default();
    assert_equal("what it reads", &told_sum, &sum()?.trim_end())?;
    let grown: i64 = grown.parse()?;
    Finding::unless(grown < CACHE_MAX_KIB, || {
        format!("its page cache has grown by {grown} KiB")
    })
}
