//! A snapshot is saved in a file on one boot of the machine, and loaded on the next: its copies go on as
//! if there had been none.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::json;

use super::CONFINED;
use super::clones::identities::have_identities;
use super::clones::start_copy;
use crate::base::scenario::KEPT;
use crate::base::support::insula_command::{self, assert_equal, insula, with_cleanup};
use crate::base::support::nodes::clock::{ALLOWED_NS, comes_within, set_base};
use crate::base::support::nodes::content;
use crate::base::support::nodes::in_node::{build_image, script};
use crate::base::support::resources::{Resources, assert_unchanged};
use crate::base::support::virtio_modules::{NETWORK_MODULES, SOCKET_MODULES, load_sockets, unload};
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;
use crate::host::machine::Emulator;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "loaded_snapshot",
    proves: "copies from a snapshot in a file go on after a new boot, the first one as a later one",
    machine: Shape {
        emulator: Emulator::Backports,
        boots: 2,
        ..Shape::USUAL
    },
    module: Module::Loaded,
    bases: &[Flavour::V6_12],
    limit: Duration::from_secs(600),
    soak_limit: None,
    play,
};

const ORIGINAL: &str = "original";
const COPY: &str = "one";
const SNAPSHOT: &str = "ready";
const CONTENT: &str = "/tmp/cloned";
const PROGRAMS: [&str; 6] = ["cat", "dd", "hostname", "sh", "sha256sum", "sleep"];
/// By how much the base's clock is set.
const STEP: Duration = Duration::from_secs(3);
/// What the first boot leaves.
const FILE: &str = "ready.image";
const FACTS: &str = "facts.json";
/// Writes a file, which is all in memory, counts from then on, and prints the file's checksum.
const PREPARE: &str = "dd if=/dev/urandom of=/data bs=65536 count=64 2> /dev/null
(while :; do echo >> /count; sleep 0.2; done) < /dev/null > /dev/null 2>&1 &
sha256sum < /data";

/// What is known of the snapshot.
struct Facts {
    /// Checksum of the file in it.
    sum: String,
    /// Lines that its program had counted at least.
    counted: u64,
    /// Pages that its first copy missed at its start.
    missed: u64,
}

impl Facts {
    fn to_json(&self) -> Vec<u8> {
        let facts = json!({ "sum": self.sum, "counted": self.counted, "missed": self.missed });
        facts.to_string().into_bytes()
    }

    fn of_json(text: &[u8]) -> Result<Self, Finding> {
        let facts: serde_json::Value = serde_json::from_slice(text)?;
        let number = |name: &str| facts[name].as_u64().unwrap_or_default();
        Ok(Self {
            sum: insula_command::text(&facts["sum"]),
            counted: number("counted"),
            missed: number("missed"),
        })
    }
}

fn play(context: &Context) -> Result<(), Finding> {
    load_sockets()?;
    let before = Resources::now()?;
    with_cleanup(|| match fs::read(Path::new(KEPT).join(FACTS)) {
        Ok(facts) => copy_goes_on(&Facts::of_json(&facts)?),
        Err(_) => snapshot_is_saved(context),
    })?;
    assert_unchanged(&before)?;
    unload(&[&NETWORK_MODULES[..], &SOCKET_MODULES].concat())
}

/// On the first boot. One copy has been started, so that it is known what they write.
fn snapshot_is_saved(context: &Context) -> Result<(), Finding> {
    content::make(CONTENT, &PROGRAMS)?;
    for folder in ["dev", "etc", "proc", "run", "sys", "tmp"] {
        fs::create_dir_all(Path::new(CONTENT).join(folder))?;
    }
    build_image(context, "cloned", "6.12", &["--content", CONTENT])?;
    let size = ["--name", ORIGINAL, "--memory", "192M", "--network"];
    insula(&[&["run", "--image", "cloned"], &CONFINED[..], &size].concat())?;
    let (status, sum) = script(ORIGINAL, PREPARE)?;
    assert_equal("status", &status, &0)?;
    let counted = counted(ORIGINAL)?;
    insula(&["snapshot", ORIGINAL, SNAPSHOT])?;
    let missed = start_copy(COPY)?;
    let kept = context.results().join("kept");
    fs::create_dir(&kept)?;
    let file = kept.join(FILE).to_string_lossy().into_owned();
    insula(&["image", "save", SNAPSHOT, "--output", &file])?;
    let facts = Facts {
        sum,
        counted,
        missed,
    };
    fs::write(kept.join(FACTS), facts.to_json())?;
    insula(&["rm", "--force", COPY, ORIGINAL])?;
    insula(&["image", "rm", SNAPSHOT, "cloned"])?;
    Ok(fs::remove_dir_all(CONTENT)?)
}

/// On the second boot, where there is nothing of the first but the file.
fn copy_goes_on(facts: &Facts) -> Result<(), Finding> {
    insula(&["image", "load", "--input", &format!("{KEPT}/{FILE}")])?;
    let missed = start_copy(COPY)?;
    println!(
        "pages missed: {} on the boot before, now {missed}",
        facts.missed
    );
    Finding::unless(missed * 2 < facts.missed, || {
        format!(
            "the first copy of a loaded snapshot misses {missed} pages, before it was saved {}",
            facts.missed
        )
    })?;
    have_identities(&[COPY])?;
    clock_is_kept()?;
    let (_, sum) = script(COPY, "sha256sum < /data")?;
    assert_equal("checksum", &sum, &facts.sum)?;
    let count = counted(COPY)?;
    Finding::unless(count > facts.counted, || {
        format!(
            "its program counts {count}, and had counted {}",
            facts.counted
        )
    })?;
    insula(&["stop", "--time", "60", COPY])?;
    insula(&["rm", COPY])?;
    insula(&["image", "rm", SNAPSHOT]).map(drop)
}

/// The copy's clock follows the base's, though its time stamp counter goes on from the snapshot's.
fn clock_is_kept() -> Result<(), Finding> {
    set_base(STEP, true)?;
    let followed = comes_within(COPY, ALLOWED_NS);
    set_base(STEP, false)?;
    followed?;
    comes_within(COPY, ALLOWED_NS)
}

fn counted(name: &str) -> Result<u64, Finding> {
    Ok(script(name, "cat /count")?.1.lines().count() as u64)
}
