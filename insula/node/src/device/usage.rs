//! The base's own uses of PCI functions.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use insula_base::root::Root;

use super::function::Function;

const BLOCK: &str = "/sys/class/block";
const NET: &str = "/sys/class/net";
/// Flag of a reject route: `RTF_REJECT` of include/uapi/linux/route.h.
const REJECT: u32 = 0x0200;

/// The uses of these functions, one sentence each that starts with the disk or interface; empty if
/// the base can do without them.
pub(super) fn of(root: &Root, functions: &[&Function]) -> Vec<String> {
    // Most nodes have none, and looking for uses takes a while.
    if functions.is_empty() {
        return Vec::new();
    }
    let paths: Vec<&Path> = functions
        .iter()
        .map(|function| function.path.as_path())
        .collect();
    let mut uses = Vec::new();
    for disk in disks(root, &paths) {
        uses.extend(uses_of_disk(root, &disk));
    }
    uses.extend(only_network(root, &paths));
    uses
}

fn is_below(path: &Path, folders: &[&Path]) -> bool {
    folders.iter().any(|folder| path.starts_with(folder))
}

fn real(root: &Root, path: &str) -> Option<PathBuf> {
    root.path(path).canonicalize().ok()
}

/// Names of the disks and partitions of these functions.
fn disks(root: &Root, functions: &[&Path]) -> Vec<String> {
    let mut names = root.names(BLOCK);
    names.retain(|name| {
        real(root, &format!("{BLOCK}/{name}"))
            .is_some_and(|path| is_below(&path, functions) || is_path_to(&path, functions))
    });
    names
}

/// Whether a multipath NVMe disk has one of these functions as a path: it is below an NVMe
/// subsystem with a link to each controller (drivers/nvme/host/multipath.c).
fn is_path_to(disk: &Path, functions: &[&Path]) -> bool {
    let mut folders = disk.ancestors();
    let subsystem = folders.find(|folder| {
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("nvme-subsys") && name != "nvme-subsystem"
    });
    let links = subsystem.and_then(|folder| std::fs::read_dir(folder).ok());
    let targets = links.into_iter().flatten().flatten();
    targets
        .filter_map(|link| link.path().canonicalize().ok())
        .any(|target| is_below(&target, functions))
}

fn uses_of_disk(root: &Root, disk: &str) -> Vec<String> {
    let mut uses = Vec::new();
    let number = root
        .text(&format!("{BLOCK}/{disk}/dev"))
        .unwrap_or_default();
    let node = format!("/dev/{disk}");
    for line in root
        .text("/proc/self/mountinfo")
        .unwrap_or_default()
        .lines()
    {
        // Fields before and after the separator: proc_pid_mountinfo(5).
        let (before, after) = line.split_once(" - ").unwrap_or((line, ""));
        let (before, after): (Vec<_>, Vec<_>) =
            (before.split(' ').collect(), after.split(' ').collect());
        let is_it = before.get(2) == Some(&number.as_str()) || after.get(1) == Some(&node.as_str());
        if let (true, Some(place)) = (is_it, before.get(4)) {
            uses.push(format!("{disk} is mounted at {place}"));
        }
    }
    let swaps = root.text("/proc/swaps").unwrap_or_default();
    if swaps
        .lines()
        .any(|line| line.split_whitespace().next() == Some(&node))
    {
        uses.push(format!("{disk} is swap space"));
    }
    for holder in root.names(&format!("{BLOCK}/{disk}/holders")) {
        uses.push(format!("{disk} is part of {holder}"));
    }
    uses
}

/// The use as the base's only connection to the network, if it is that.
fn only_network(root: &Root, functions: &[&Path]) -> Option<String> {
    let (own, others): (Vec<_>, Vec<_>) = interfaces(root)
        .into_iter()
        .partition(|interface| is_below(&interface.path, functions));
    let routes = default_routes(root);
    let has_route = |interface: &&Interface| match routes.is_empty() {
        true => interface.is_up,
        false => interface.names.iter().any(|name| routes.contains(name)),
    };
    let found = own.iter().find(has_route)?;
    if others.iter().any(|other| has_route(&other)) {
        return None;
    }
    Some(format!(
        "{} is the only connection to the network",
        found.names[0]
    ))
}

/// A network interface with a device.
struct Interface {
    path: PathBuf,
    /// Its name, and those of its upper interfaces (bridges, bonds).
    names: Vec<String>,
    is_up: bool,
}

fn interfaces(root: &Root) -> Vec<Interface> {
    let names = root.names(NET);
    let of_devices = names.into_iter().filter_map(|name| {
        let path = real(root, &format!("{NET}/{name}"))?;
        let is_up = root
            .text(&format!("{NET}/{name}/operstate"))
            .is_ok_and(|state| state == "up");
        let of_device = root.exists(&format!("{NET}/{name}/device"));
        of_device.then(|| Interface {
            path,
            is_up,
            names: with_uppers(root, name),
        })
    });
    of_devices.collect()
}

fn with_uppers(root: &Root, name: String) -> Vec<String> {
    let mut names = vec![name];
    let mut next = 0;
    while let Some(name) = names.get(next) {
        for entry in root.names(&format!("{NET}/{name}")) {
            if let Some(upper) = entry.strip_prefix("upper_")
                && !names.iter().any(|known| known == upper)
            {
                names.push(upper.to_owned());
            }
        }
        next += 1;
    }
    names
}

/// Interfaces with a default route (`/proc/net/route` and `/proc/net/ipv6_route`).
fn default_routes(root: &Root) -> BTreeSet<String> {
    let (v4, v6) = (
        root.text("/proc/net/route"),
        root.text("/proc/net/ipv6_route"),
    );
    let hex = |word: &str| u32::from_str_radix(word, 16).unwrap_or_default();
    let mut names = BTreeSet::new();
    for line in v4.unwrap_or_default().lines().skip(1) {
        let words: Vec<_> = line.split_whitespace().collect();
        if let [name, "00000000", _, flags, _, _, _, "00000000", ..] = words[..]
            && hex(flags) & REJECT == 0
        {
            names.insert(name.to_owned());
        }
    }
    for line in v6.unwrap_or_default().lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        if let [target, "00", .., flags, name] = words[..]
            && target.bytes().all(|digit| digit == b'0')
            && hex(flags) & REJECT == 0
        {
            names.insert(name.to_owned());
        }
    }
    names.remove("lo");
    names
}
