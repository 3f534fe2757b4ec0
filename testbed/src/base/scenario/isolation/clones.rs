//! A confined node that has booted is copied: the original goes on, and so does each copy, with a name,
//! an address and random numbers of its own. What one of them writes, no other sees.

mod crafted;
pub(super) mod identities;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use insula_abi::Chunk;
use insula_driver::Driver;
use insula_driver::name::Name;
use nix::errno::Errno;

use self::identities::{are_on_its_network, have_identities, reseed_by_themselves};
use super::CONFINED;
use crate::base::support::hold::Hold;
use crate::base::support::insula_command::{
    assert_equal, insula, insula_json, text, try_insula, wait_for, with_cleanup,
};
use crate::base::support::nodes::content;
use crate::base::support::nodes::in_node::{build_image, script};
use crate::base::support::resources::{Resources, assert_unchanged};
use crate::base::support::virtio_modules::{NETWORK_MODULES, SOCKET_MODULES, load_sockets, unload};
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;
use crate::host::machine::Emulator;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "clones",
    proves: "copies of a node that has booted go on, each by itself, and the original goes on",
    machine: Shape {
        emulator: Emulator::Backports,
        cpus: 7,
        ..Shape::USUAL
    },
    module: Module::Loaded,
    bases: &[Flavour::V6_12],
    limit: Duration::from_secs(1200),
    soak_limit: Some(Duration::from_secs(1800)),
    play,
};

/// The node that is copied.
const ORIGINAL: &str = "original";

/// A node with copies.
struct Play {
    version: &'static str,
    /// Number of its cores.
    cpus: &'static str,
    /// Further options.
    options: &'static [&'static str],
    copies: &'static [&'static str],
    /// Whether files of its snapshot are changed, too.
    is_crafted: bool,
    /// Whether the first copy ends for lack of memory.
    ends_poor: bool,
}

/// What is played in a usual run.
const USUAL: Play = Play {
    version: "6.12",
    cpus: "2",
    options: &["--network", NETWORK, "--rootfs", ROOT],
    copies: &["one", "two"],
    is_crafted: true,
    ends_poor: true,
};
const MANY: Play = Play {
    version: "6.12",
    cpus: "1",
    options: &["--network"],
    copies: &["one", "two"],
    is_crafted: true,
    ends_poor: false,
};
const WIDE: Play = Play {
    version: "6.1",
    cpus: "2",
    options: &["--network", "--rootfs", ROOT],
    copies: &["wide"],
    is_crafted: false,
    ends_poor: true,
};
/// The kernel that has a driver for generations.
const RESEEDS: &str = "6.12";
/// Root of a node, in memory.
const ROOT: &str = "/tmp/cloned.erofs";
/// Most bytes of its own that a copy has once its agent has answered.
const OWN_MAX: u64 = 8 << 20;
const SNAPSHOT: &str = "ready";
/// A network of the original, and so of its copies.
const NETWORK: &str = "back";
/// Content of the image: a busybox, and links to it.
const CONTENT: &str = "/tmp/cloned";
const PROGRAMS: [&str; 9] = [
    "cat",
    "dd",
    "hostname",
    "ip",
    "ls",
    "sh",
    "sha256sum",
    "sleep",
    "uname",
];

fn play(context: &Context) -> Result<(), Finding> {
    load_sockets()?;
    make_content()?;
    insula(&["network", "create", NETWORK])?;
    let before = Resources::now()?;
    let played = with_cleanup(|| {
        for play in context.select(&[USUAL][..], &[MANY, WIDE]) {
            copies_go_on(context, play).map_err(|finding| finding.when(play.version))?;
            assert_unchanged(&before)?;
        }
        Ok(())
    });
    fs::remove_dir_all(CONTENT)?;
    fs::remove_file(ROOT)?;
    played?;
    insula(&["network", "rm", NETWORK])?;
    unload(&[&NETWORK_MODULES[..], &SOCKET_MODULES].concat())
}

fn make_content() -> Result<(), Finding> {
    content::make(CONTENT, &PROGRAMS)?;
    for folder in ["dev", "etc", "proc", "run", "sys", "tmp"] {
        fs::create_dir_all(Path::new(CONTENT).join(folder))?;
    }
    let made = Command::new("mkfs.erofs")
        .args(["-Enoinline_data", ROOT, CONTENT])
        .output()?;
    Finding::unless(made.status.success(), || format!("mkfs.erofs: {made:?}"))
}

fn copies_go_on(context: &Context, play: &Play) -> Result<(), Finding> {
    let &Play {
        version,
        cpus,
        options,
        copies,
        ..
    } = play;
    build_image(context, "cloned", version, &["--content", CONTENT])?;
    let size = ["--name", ORIGINAL, "--memory", "192M", "--cpus", cpus];
    insula(&[&["run", "--image", "cloned"], &CONFINED[..], &size, options].concat())?;
    let written = prepare()?;
    refusals()?;
    insula(&["snapshot", ORIGINAL, SNAPSHOT])?;
    saved_and_loaded(play)?;
    try_insula(&["snapshot", ORIGINAL, SNAPSHOT])?.refused(1, &["already is an image"])?;
    shown(cpus)?;
    shown_memory_is_not_given()?;
    let missed = copies.iter().map(|name| start_copy(name));
    later_ones_miss_less(&missed.collect::<Result<Vec<_>, _>>()?)?;
    insula(&["image", "rm", SNAPSHOT])?;
    starts_small(copies)?;
    have_identities(copies)?;
    are_on_its_network(copies)?;
    if version == RESEEDS {
        reseed_by_themselves(copies)?;
    }
    each_by_itself(copies, &written)?;
    works_as_others(copies[0], cpus)?;
    if play.ends_poor {
        ends_for_lack_of_memory(copies[0], &copies[1..])?;
    }
    insula(&["rm", "--force", copies[0]])?;
    for name in copies[1..].iter().chain(&[ORIGINAL]) {
        insula(&["stop", "--time", "60", name])?;
        let reason = insula_json(&["inspect", name])?[0]["reason"].clone();
        assert_equal("reason", &reason.as_str(), &Some("power-off"))?;
        insula(&["rm", name])?;
    }
    insula(&["image", "rm", "cloned"]).map(drop)
}

/// Writes a file in the original, and returns its checksum; it counts in the background from then on.
fn prepare() -> Result<String, Finding> {
    let script_text = "dd if=/dev/urandom of=/data bs=65536 count=32 2>/dev/null; \
                       (while :; do echo >> /count; sleep 0.2; done) </dev/null >/dev/null 2>&1 & \
                       sha256sum < /data";
    let (status, sum) = script(ORIGINAL, script_text)?;
    assert_equal("status", &status, &0)?;
    Ok(sum)
}

/// What cannot be copied, and what a copy cannot have.
fn refusals() -> Result<(), Finding> {
    try_insula(&["snapshot", "nobody", SNAPSHOT])?.refused(1, &["there is no node 'nobody'"])?;
    try_insula(&["snapshot", ORIGINAL, "cloned"])?.refused(1, &["already is an image"])?;
    let size = ["--name", "other", "--memory", "128M"];
    let folder = ["--isolation", "vmm", "--rootfs", CONTENT];
    for (options, why) in [
        (&folder[..], "its root is a folder"),
        (&[], "only nodes with --isolation vmm"),
    ] {
        insula(&[&["run", "--image", "cloned"], &size[..], options].concat())?;
        try_insula(&["snapshot", "other", SNAPSHOT])?.refused(1, &["'other'", why])?;
        if options == &folder[..] {
            containers_stay()?;
        }
        insula(&["rm", "--force", "other"])?;
    }
    Ok(())
}

/// A container of a confined node does not move to the base.
fn containers_stay() -> Result<(), Finding> {
    let exec = ["exec", "--container", "held", "-d", "other", "--"];
    insula(&[&exec[..], &["sleep", "1000"]].concat())?;
    for words in [
        &["move", "held", "base"][..],
        &["move", "--check", "held", "base"],
    ] {
        try_insula(words)?.refused(1, &["is confined", "root's rights", "left as it is"])?;
    }
    insula(&["rm", "--force", "held"]).map(drop)
}

/// A snapshot that was saved in a file and loaded again is as good as before; a damaged file is refused.
fn saved_and_loaded(play: &Play) -> Result<(), Finding> {
    let (file, damaged) = ("/tmp/ready.image", "/tmp/damaged.image");
    insula(&["image", "save", SNAPSHOT, "--output", file])?;
    insula(&["image", "rm", SNAPSHOT])?;
    let mut bytes = fs::read(file)?;
    println!("snapshot of 192M in a file: {} KiB", bytes.len() >> 10);
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(damaged, bytes)?;
    let before = Resources::now()?;
    try_insula(&["image", "load", "--input", damaged])?.refused(1, &["checksum"])?;
    assert_unchanged(&before)?;
    insula(&["image", "load", "--input", file])?;
    fs::remove_file(damaged)?;
    if play.is_crafted {
        crafted::are_survived(&fs::read(file)?)?;
    }
    Ok(fs::remove_file(file)?)
}

/// Memory that shows an image is nothing to give to a node, or to make an image of: its addresses are those that
/// its maker has named.
fn shown_memory_is_not_given() -> Result<(), Finding> {
    let named = |name: &str| name.parse::<Name>().map(|name| name.to_abi());
    let driver = Driver::open()?;
    let image = driver.open_image(&named(SNAPSHOT)?)?;
    let nowhere = Chunk {
        start: 1 << 40,
        size: 2 << 20,
    };
    let shown = driver.show_memory(&image, &[nowhere])?;
    let node = driver.open_node(&named(ORIGINAL)?)?;
    for given in [
        node.grow(&[], Some(&shown)),
        driver.add_image(&named("shown")?, b"{}", &shown),
    ] {
        let errno = given.err().map(|error| error.errno);
        assert_equal("error", &errno, &Some(Errno::EOPNOTSUPP))?;
    }
    Ok(())
}

/// The snapshot is listed with its kind.
fn shown(cpus: &str) -> Result<(), Finding> {
    let image = &insula_json(&["image", "inspect", SNAPSHOT])?[0];
    assert_equal("kind", &image["kind"].as_str(), &Some("snapshot"))?;
    assert_equal("its node", &image["node"].as_str(), &Some(ORIGINAL))?;
    let cores = format!("has {cpus} cores");
    for (options, why) in [
        (["--cpus", "3"], cores.as_str()),
        (["--memory", "64M"], "has its node's memory"),
    ] {
        let run = ["run", "--image", SNAPSHOT, "--name", "other"];
        try_insula(&[&run[..], &options].concat())?.refused(1, &[why, "nothing was touched"])?;
    }
    Ok(())
}

/// Starts a copy, and returns how often it has exited since a page was not its own.
pub(super) fn start_copy(name: &str) -> Result<u64, Finding> {
    insula(&["run", "--image", SNAPSHOT, "--name", name])?;
    let exits = insula_json(&["inspect", name])?[0]["monitor"]["exits"]["memory"].as_u64();
    exits.ok_or_else(|| Finding::new(format!("{name} counts no exits")))
}

/// What the first copy has written, later ones have before they start.
fn later_ones_miss_less(missed: &[u64]) -> Result<(), Finding> {
    println!("pages missed by each copy at its start: {missed:?}");
    let Some((first, later)) = missed.split_first() else {
        return Ok(());
    };
    Finding::unless(later.iter().all(|count| count * 2 < *first), || {
        format!("later copies miss about as many pages as the first: {missed:?}")
    })
}

/// Most of a copy's memory is shared.
fn starts_small(copies: &[&str]) -> Result<(), Finding> {
    for name in copies {
        let view = &insula_json(&["inspect", name])?[0];
        let own = view["own_memory_bytes"].as_u64().unwrap_or(u64::MAX);
        println!("memory of its own, {name}: {} KiB", own >> 10);
        Finding::unless(own > 0 && own <= OWN_MAX, || {
            format!("{name} has {own} bytes of its own at its start")
        })?;
    }
    Ok(())
}

/// Each has the file as it was, and may write it: nobody else sees that. What ran in the original runs
/// in all of them.
fn each_by_itself(copies: &[&str], written: &str) -> Result<(), Finding> {
    let nodes = || copies.iter().copied().chain([ORIGINAL]);
    let counts =
        |name| -> Result<usize, Finding> { Ok(script(name, "cat /count")?.1.lines().count()) };
    for name in nodes() {
        let (_, sum) = script(name, "sha256sum < /data")?;
        assert_equal("checksum", &sum.as_str(), &written)?;
    }
    let before: Vec<_> = nodes().map(counts).collect::<Result<_, _>>()?;
    let mut sums = BTreeSet::new();
    for name in nodes() {
        let rewrite = format!(
            "for i in $(busybox seq 32); do echo {name} $i; done > /pattern; \
             busybox sed -i s/$/{name}/ /pattern; busybox yes {name} | dd of=/data bs=65536 \
             count=32 iflag=fullblock 2>/dev/null; sha256sum < /data"
        );
        sums.insert(script(name, &rewrite)?.1);
    }
    assert_equal("contents that differ", &sums.len(), &(copies.len() + 1))?;
    for name in nodes() {
        let (_, sum) = script(name, "sha256sum < /data")?;
        Finding::unless(sums.remove(&sum), || {
            format!("{name} has what another wrote")
        })?;
    }
    for (name, before) in nodes().zip(before) {
        let now = counts(name)?;
        Finding::unless(now > before, || {
            format!("{name} counts no further than {before}")
        })?;
    }
    Ok(())
}

/// A copy that writes a page for which the base has no memory ends, and says so.
fn ends_for_lack_of_memory(name: &str, others: &[&str]) -> Result<(), Finding> {
    // The next page that any of them writes is the one for which there is none.
    for other in others {
        insula(&["pause", other])?;
    }
    let failing = Hold::failing("insula_shown_own", Errno::ENOMEM)?;
    // It may have ended before this has.
    let _ = script(name, "dd if=/dev/zero of=/more bs=65536 count=512");
    failing.wait()?;
    drop(failing);
    for other in others {
        insula(&["resume", other])?;
    }
    let view = wait_for("a copy without memory to end", || {
        let view = insula_json(&["inspect", name])?[0].clone();
        Ok((text(&view["state"]) == "stopped").then_some(view))
    })?;
    assert_equal("reason", &text(&view["reason"]).as_str(), &"violation")?;
    let kind = text(&view["monitor"]["ended"]["kind"]);
    assert_equal("kind", &kind.as_str(), &"no-memory")
}

/// A copy can be inspected, paused and dumped as others can; it cannot be started again, nor resized.
fn works_as_others(name: &str, cpus: &str) -> Result<(), Finding> {
    let (_, online) = script(name, "cat /sys/devices/system/cpu/online")?;
    let expected = if cpus == "1" { "0" } else { "0-1" };
    assert_equal("its cores", &online.trim(), &expected)?;
    // Its first one writes many pages, each of which takes the base's help: a loaded computer may not
    // emulate that within the command's timeout.
    wait_for("a core to answer an NMI", || {
        let lines = insula(&["backtrace", name])?;
        Ok(lines.contains("NMI backtrace for cpu 0").then_some(()))
    })?;
    try_insula(&["restart", name])?.refused(1, &["is a copy"])?;
    try_insula(&["update", name, "--memory", "+128M"])?.refused(1, &["copy"])?;
    insula(&["pause", name])?;
    insula(&["dump", "--output", "/tmp/copy.vmcore", name])?;
    fs::remove_file("/tmp/copy.vmcore")?;
    insula(&["resume", name])?;
    let (_, answer) = script(name, "uname")?;
    assert_equal("system", &answer.trim(), &"Linux")
}
