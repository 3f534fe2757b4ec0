//! Node that runs the testbed's own initial file system.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::growing_log::wait_for_record;
use crate::base::support::insula_command::{
    insula, insula_json, names, numbers, try_insula, wait_for,
};
use crate::base::{Context, Finding};
use crate::host::payload::equipment::PEER_INITRD_PATH;

/// Prefix of each line of a test node's init.
const MARK: &str = "insula-node: ";

/// A node that was started.
#[derive(Debug)]
pub(crate) struct TestNode {
    pub(crate) name: String,
    /// Random text that the node must report, to prove that it is this start's node.
    nonce: String,
    /// Its cores, by the base's numbers.
    pub(crate) cpus: Vec<u32>,
    /// Their local APIC ids.
    pub(crate) apic_ids: Vec<u32>,
}

/// A node's report that it is ready.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ready {
    nonce: String,
    release: String,
    apic_ids: Vec<u32>,
}

impl TestNode {
    /// Starts one with a random nonce and the task `task` (see [`Context::node_initrd`]). `source`
    /// and `size` are arguments for `insula run`.
    pub(crate) fn start(
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

    /// A copy of it, which goes on with its log.
    pub(crate) fn copied_as(&self, name: &str) -> Self {
        Self {
            name: name.to_owned(),
            nonce: self.nonce.clone(),
            cpus: Vec::new(),
            apic_ids: self.apic_ids.clone(),
        }
    }

    /// Waits until it is ready. It must report its nonce, the release `release` and its cores.
    pub(crate) fn assert_ready(&self, release: &str) -> Result<(), Finding> {
        let report = self.wait_until_reported()?;
        let mut expected = Ready {
            nonce: self.nonce.clone(),
            release: release.to_owned(),
            apic_ids: self.apic_ids.clone(),
        };
        expected.apic_ids.sort_unstable();
        Finding::unless(report == expected, || {
            format!("{} reported {report:?} instead of {expected:?}", self.name)
        })
    }

    fn wait_until_reported(&self) -> Result<Ready, Finding> {
        let what = format!("{} to be ready", self.name);
        self.wait_for_init(&what, |line| {
            line.strip_prefix("ready ").map(Ready::parse).transpose()
        })
    }

    /// Waits until it is ready to do its task, without further checks.
    pub(crate) fn wait_until_ready(&self) -> Result<(), Finding> {
        self.wait_until_reported().map(drop)
    }

    /// Lines that its init has written so far.
    fn init_lines(&self) -> Result<Vec<String>, Finding> {
        let log = log(&self.name)?;
        let lines = log.lines().filter_map(|line| line.split_once(MARK));
        Ok(lines.map(|(_, line)| line.to_owned()).collect())
    }

    /// Waits for a line of its init that starts with `prefix`. Returns the line.
    pub(crate) fn wait_for_line(&self, prefix: &str) -> Result<String, Finding> {
        let what = format!("{} to report `{prefix}`", self.name);
        self.wait_for_init(&what, |line| {
            Ok(line.starts_with(prefix).then(|| line.to_owned()))
        })
    }

    /// Waits until a line of its init gives a value.
    fn wait_for_init<T>(
        &self,
        what: &str,
        mut check: impl FnMut(&str) -> Result<Option<T>, Finding>,
    ) -> Result<T, Finding> {
        wait_for_record(&self.name, what, |line| match line.split_once(MARK) {
            Some((_, line)) => check(line),
            None => Ok(None),
        })
    }

    /// Last line of its init that starts with `prefix`.
    pub(crate) fn last_line(&self, prefix: &str) -> Result<Option<String>, Finding> {
        let mut init_lines = self.init_lines()?.into_iter();
        Ok(init_lines.rfind(|line| line.starts_with(prefix)))
    }

    /// Rounds of `do=compute` that it has reported.
    pub(crate) fn rounds(&self) -> Result<u64, Finding> {
        let init_lines = self.init_lines()?;
        let mut rounds = init_lines.iter().rev().map(|line| rounds_of(line));
        Ok(rounds.find_map(Result::transpose).transpose()?.unwrap_or(0))
    }

    /// Waits until it has done more work than now.
    pub(crate) fn assert_works(&self) -> Result<(), Finding> {
        let before = self.rounds()?;
        let what = format!("{} to continue computing", self.name);
        self.wait_for_init(&what, |line| {
            Ok(rounds_of(line)?.filter(|&now| now > before))
        })
        .map(drop)
    }

    /// Its inspection.
    pub(crate) fn inspect(&self) -> Result<Value, Finding> {
        let list = insula_json(&["inspect", &self.name])?;
        Ok(list[0].clone())
    }

    /// Waits until it has ended by itself. Returns its inspection.
    pub(crate) fn wait_for_end(&self) -> Result<Value, Finding> {
        wait_for(&format!("{} to end", self.name), || {
            let view = self.inspect()?;
            Ok((view["state"] == "stopped").then_some(view))
        })
    }

    /// Fails unless it runs.
    pub(crate) fn assert_runs(&self) -> Result<(), Finding> {
        let view = self.inspect()?;
        Finding::unless(view["state"] == "running", || {
            format!("{} does not run: {view}", self.name)
        })
    }

    /// Stops and removes it.
    pub(crate) fn remove(&self) -> Result<(), Finding> {
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

/// Rounds of `do=compute` that a line reports.
fn rounds_of(line: &str) -> Result<Option<u64>, Finding> {
    let rounds = line.strip_prefix("compute rounds=");
    let number = rounds.and_then(|rest| rest.split(' ').next());
    Ok(number.map(str::parse).transpose()?)
}

/// A node's kernel log; empty as long as there is none.
pub(crate) fn log(name: &str) -> Result<String, Finding> {
    let answer = try_insula(&["logs", name])?;
    if answer.status == Some(1) && answer.error_output.contains("has not logged anything yet") {
        return Ok(String::new());
    }
    answer.succeeded()
}

/// Makes the kernel whose version starts with `version` resident as the image `name`, with the test
/// nodes' initial file system.
pub(crate) fn add_image(context: &Context, name: &str, version: &str) -> Result<(), Finding> {
    add(context, name, version, "compressed", context.node_initrd())
}

/// The same unpacked: for many nodes where unpacking by the kernel does not matter. It takes a
/// sixth to a third of the time to init.
pub(crate) fn add_unpacked_image(
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

/// Resident image of nodes that talk to the base, with the kernel whose version starts with
/// `version`; added if missing. For a node that is started from files each command derives anew how
/// to read its log, which takes an emulated machine seconds.
pub(crate) fn peer_image(context: &Context, version: &str) -> Result<String, Finding> {
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

/// A path as an argument of a command.
pub(crate) fn path(path: &Path) -> String {
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
