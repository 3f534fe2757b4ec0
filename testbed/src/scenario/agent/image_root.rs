//! Nodes whose root is one image in memory.

use std::fs;
use std::process::Command;

use super::{Finding, ROOT, ask, assert_equal, insula, insula_json, script, sum, wait_for};

/// The image.
const IMAGE: &str = "/tmp/root.erofs";
/// Memory of a node.
const MEMORY: (&str, u64) = ("256M", 256 << 20);
/// What memory is taken in.
const GRANULE: u64 = 2 << 20;
/// What lies before it.
const HEAD_SIZE: u64 = 8 << 10;
/// Page cache that may come and go while a file is read, in KiB; it is larger by far.
const CACHE_MAX_KIB: i64 = 1024;

/// Nodes of both kernels on one image, which lies in memory once; it goes with the last of them.
pub(super) fn two_nodes() -> Result<(), Finding> {
    make_image()?;
    let no_image = format!("{ROOT}/data");
    ask(&["run", "--image", "image-6.1", "--rootfs", &no_image])?
        .refused(1, &[&no_image, "EROFS", "nothing was touched"])?;
    let before = taken()?;
    let image = (HEAD_SIZE + fs::metadata(IMAGE)?.len()).next_multiple_of(GRANULE);
    let nodes =
        ["6.1", "6.12"].map(|version| (format!("image-{version}"), format!("on-{version}")));
    for ((kernel, node), wanted) in nodes.iter().zip([MEMORY.1 + image, 2 * MEMORY.1 + image]) {
        insula(&[
            "run", "--image", kernel, "--name", node, "--memory", MEMORY.0, "--rootfs", IMAGE,
        ])?;
        assert_equal("memory taken", &(taken()? - before), &wanted)?;
    }
    let [(_, first), (_, second)] = &nodes;
    let shared =
        |node: &str| Ok::<_, Finding>(insula_json(&["inspect", node])?[0]["shared_memory"].clone());
    assert_equal("where the image lies", &shared(first)?, &shared(second)?)?;
    for node in [first, second] {
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
    insula(&["rm", "--force", second])?;
    wait_for("all memory to be back", || {
        Ok((taken()? == before).then_some(()))
    })?;
    Ok(fs::remove_file(IMAGE)?)
}

fn make_image() -> Result<(), Finding> {
    let made = Command::new("mkfs.erofs").args(["-Enoinline_data", IMAGE, ROOT]).output()?;
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
