//! A node that runs the test bed's own initial file system.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::insula_command::{ask, insula, insula_json, names, numbers, wait_for};
use super::{Context, Finding};
use crate::equipment::PEER_INITRD_PATH;

/// What the init of a test node writes before each of its lines.
const MARK: &str = "insula-node: ";

/// A node that was started.
#[derive(Debug)]
pub(super) struct TestNode {
    pub(super) name: String,
    /// What it has to say to prove that it is this start's node.
    nonce: String,
    /// Its cores, by the base's numbers.
    pub(super) cpus: Vec<u32>,
    /// Their local APICs' ids.
    pub(super) apic_ids: Vec<u32>,
}

/// What a node told on being ready.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ready {
    nonce: String,
    release: String,
    apic_ids: Vec<u32>,
}

impl TestNode {
    /// Starts one with a random nonce; it will `task` (see [`Context::node_initrd`]). `source` and
    /// `size` are words for `insula run`.
    pub(super) fn start(
        name: &str,
        source: &[&str],
        size: &[&str],
        task: &str,
    ) -> Result<Self, Finding> {
        let nonce = random_nonce()?;
        let append = format!("nonce={nonce} do={task}");
        let own = ["run", "--json", "--name", name, "--append", &append];
        let started = insula_json(&[&own, source, size].concat())?;
        Ok(Self {
            name: name.to_owned(),
            nonce,
            cpus: numbers(&started["cpus"]),
            apic_ids: numbers(&started["apic_ids"]),
        })
    }

    /// Waits until it is ready. It must tell the nonce that it was given, the release `release`
    /// and the cores that were taken for it.
    pub(super) fn assert_ready(&self, release: &str) -> Result<(), Finding> {
        let told = wait_for(&format!("{} to be ready", self.name), || self.ready())?;
        let mut expected = Ready {
            nonce: self.nonce.clone(),
            release: release.to_owned(),
            apic_ids: self.apic_ids.clone(),
        };
        expected.apic_ids.sort_unstable();
        Finding::unless(told == expected, || {
            format!("{} told {told:?} instead of {expected:?}", self.name)
        })
    }

    fn ready(&self) -> Result<Option<Ready>, Finding> {
        let lines = self.said()?;
        let line = lines.iter().find_map(|line| line.strip_prefix("ready "));
        line.map(Ready::parse).transpose()
    }

    /// Waits until it is ready to do its task, and leaves the rest unchecked.
    pub(super) fn wait_until_ready(&self) -> Result<(), Finding> {
        wait_for(&format!("{} to be ready", self.name), || self.ready()).map(drop)
    }

    /// What its init has said so far.
    fn said(&self) -> Result<Vec<String>, Finding> {
        let log = log(&self.name)?;
        let lines = log.lines().filter_map(|line| line.split_once(MARK));
        Ok(lines.map(|(_, said)| said.to_owned()).collect())
    }

    /// Waits for a line of its init that begins so. Answers the line.
    pub(super) fn wait_for_line(&self, beginning: &str) -> Result<String, Finding> {
        wait_for(&format!("{} to say `{beginning}`", self.name), || {
            Ok(self
                .said()?
                .into_iter()
                .find(|line| line.starts_with(beginning)))
        })
    }

    /// What its init has said last that begins so.
    pub(super) fn said_last(&self, beginning: &str) -> Result<Option<String>, Finding> {
        let mut said = self.said()?.into_iter();
        Ok(said.rfind(|line| line.starts_with(beginning)))
    }

    /// How many rounds of `do=compute` it has told of.
    pub(super) fn rounds(&self) -> Result<u64, Finding> {
        let said = self.said()?;
        let mut rounds = said
            .iter()
            .filter_map(|line| line.strip_prefix("compute rounds="));
        let last = rounds.next_back().and_then(|rest| rest.split(' ').next());
        Ok(last.map_or(Ok(0), str::parse)?)
    }

    /// Waits until it has done more work than it has now.
    pub(super) fn assert_works(&self) -> Result<(), Finding> {
        let before = self.rounds()?;
        let more = || Ok((self.rounds()? > before).then_some(()));
        wait_for(&format!("{} to go on computing", self.name), more)
    }

    /// All that is known of it.
    pub(super) fn inspect(&self) -> Result<Value, Finding> {
        let list = insula_json(&["inspect", &self.name])?;
        Ok(list[0].clone())
    }

    /// Waits until it has ended by itself. Answers its view.
    pub(super) fn wait_for_end(&self) -> Result<Value, Finding> {
        wait_for(&format!("{} to end", self.name), || {
            let view = self.inspect()?;
            Ok((view["state"] == "stopped").then_some(view))
        })
    }

    /// Fails unless it runs.
    pub(super) fn assert_runs(&self) -> Result<(), Finding> {
        let view = self.inspect()?;
        Finding::unless(view["state"] == "running", || {
            format!("{} does not run: {view}", self.name)
        })
    }

    /// Stops and removes it.
    pub(super) fn remove(&self) -> Result<(), Finding> {
        insula(&["rm", "--force", &self.name]).map(drop)
    }
}

impl Ready {
    fn parse(line: &str) -> Result<Self, Finding> {
        let option = |name: &str| {
            let mut values = line.split(' ').filter_map(|word| word.strip_prefix(name));
            let value = values.next().map(str::to_owned);
            value.ok_or_else(|| Finding::new(format!("no {name} in: {line}")))
        };
        let ids = option("apicids=")?;
        let mut apic_ids = ids
            .split(',')
            .map(str::parse)
            .collect::<Result<Vec<_>, _>>()?;
        apic_ids.sort_unstable();
        Ok(Self {
            nonce: option("nonce=")?,
            release: option("release=")?,
            apic_ids,
        })
    }
}

/// A node's kernel log; empty as long as there is none.
pub(super) fn log(name: &str) -> Result<String, Finding> {
    let answer = ask(&["logs", name])?;
    if answer.status == Some(1) && answer.complaint.contains("has not logged anything yet") {
        return Ok(String::new());
    }
    answer.succeeded()
}

/// Makes the kernel whose version begins with `version` resident as the image `name`, with the
/// test nodes' initial file system.
pub(super) fn add_image(context: &Context, name: &str, version: &str) -> Result<(), Finding> {
    add(context, name, version, "compressed", context.node_initrd())
}

/// The same unpacked: for many nodes whose kernels' own unpacking is not what is to be shown. It is
/// a sixth to a third of the way to init.
pub(super) fn add_unpacked_image(
    context: &Context,
    name: &str,
    version: &str,
) -> Result<(), Finding> {
    add(
        context,
        name,
        version,
        "decompressed",
        context.node_initrd(),
    )
}

/// The resident image of nodes that talk to the base, of the kernel whose version begins with
/// `version`; it is added if it is not there yet. Of a node that is started from files each command
/// learns anew how to read its log, which takes an emulated machine seconds.
pub(super) fn peer_image(context: &Context, version: &str) -> Result<String, Finding> {
    let name = format!("peer-{version}");
    if !names(&["image", "ls", "--json"])?.contains(&name) {
        let initrd = Path::new(PEER_INITRD_PATH);
        add(context, &name, version, "decompressed", initrd)?;
    }
    Ok(name)
}

fn add(
    context: &Context,
    name: &str,
    version: &str,
    layout: &str,
    initrd: &Path,
) -> Result<(), Finding> {
    let kernel = path(&context.kernel(version)?);
    let initrd = path(initrd);
    let files = ["--kernel", &kernel, "--initrd", &initrd];
    insula(&[&["image", "add", name, "--layout", layout], &files[..]].concat()).map(drop)
}

/// A path as a word for a command.
pub(super) fn path(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn random_nonce() -> Result<String, Finding> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/uuid")?
        .trim()
        .to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_line_is_understood() {
        let ready = Ready::parse("nonce=a-b release=6.1.0-9 apicids=3,2").unwrap();
        assert_eq!((ready.nonce.as_str(), ready.apic_ids), ("a-b", vec![2, 3]));
        for line in ["nonce=a release=b", "nonce=a release=b apicids=x", ""] {
            assert!(Ready::parse(line).is_err(), "{line}");
        }
    }
}
