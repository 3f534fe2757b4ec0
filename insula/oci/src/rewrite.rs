//! The configuration of the process that stands for a container on the base.
//!
//! That process (see [`stand_in`](super::stand_in)) is run by the ordinary runtime in place of the container's:
//! in the cgroup, the network namespace and with the standard streams that the container would have, but with
//! the base's files, devices and processes, which it needs to start a node. The container's root and
//! mounts are below a folder of their own there.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::config::{Config, Mount};
use super::mounts::ROOTFS;
use super::restrictions::CAPABILITIES;

/// Its own environment, beside the terminal's type.
const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Namespaces of the container that it has, too. It does not have those of process ids and users: the
/// supervisor of a node is known by its id on the base.
const NAMESPACES: [&str; 4] = ["ipc", "mount", "network", "uts"];
/// Parts of `linux` that it has, too. The others restrict it, or are the node's kernel's.
const LINUX: [&str; 2] = ["cgroupsPath", "namespaces"];
/// Parts of the process that it has, too.
const PROCESS: [&str; 2] = ["consoleSize", "terminal"];
/// Folders of the base whose file systems show the namespaces of who has mounted them, and their types.
const OF_NAMESPACES: [(&str, &str); 2] = [("proc", "proc"), ("sys", "sysfs")];

/// What a configuration is rewritten for.
#[derive(Clone, Debug)]
pub(super) struct StandIn<'a> {
    /// Its program and arguments.
    pub(super) words: Vec<String>,
    /// Its root: a folder with a mount point for each of `base`.
    pub(super) root: &'a Path,
    /// Names of the folders in the base's root.
    pub(super) base: &'a [String],
    /// The container's root on the base.
    pub(super) rootfs: &'a Path,
    /// The container's mounts, which wait to be put in place.
    pub(super) mounts: &'a [Mount],
}

/// Rewrites the configuration `value`, which says `config`. What is not known stays as it is.
pub(super) fn rewrite(value: &Value, config: &Config, to: &StandIn<'_>) -> Value {
    let mut all = object(value);
    // It has no host name of its own, and need not have a namespace for one.
    for key in ["vm", "hostname", "domainname"] {
        all.remove(key);
    }
    all.insert("root".into(), json!({"path": to.root, "readonly": false}));
    let found = object(&value["process"]);
    let terminal = config.process.as_ref().map(|process| &process.env[..]);
    let process = process(&found, terminal.unwrap_or_default(), &to.words);
    all.insert("process".into(), process);
    all.insert("mounts".into(), mounts(config, to));
    all.insert("linux".into(), linux(&object(&value["linux"])));
    Value::Object(all)
}

/// Rewrites a process to one with these words, for a program with this environment.
pub(super) fn process(
    found: &Map<String, Value>,
    environment: &[String],
    words: &[String],
) -> Value {
    let mut process = kept(found, &PROCESS);
    let terminal = environment.iter().filter(|one| one.starts_with("TERM="));
    let environment: Vec<_> = [PATH]
        .into_iter()
        .chain(terminal.map(String::as_str))
        .collect();
    let sets = ["bounding", "effective", "permitted"];
    // To start a node is a privilege of root's.
    let capabilities: Map<_, _> = sets
        .map(|set| (set.to_owned(), json!(&CAPABILITIES[..])))
        .into_iter()
        .collect();
    process.insert("args".into(), json!(words));
    process.insert("cwd".into(), json!("/"));
    process.insert("env".into(), json!(environment));
    process.insert("user".into(), json!({"uid": 0, "gid": 0}));
    process.insert("capabilities".into(), Value::Object(capabilities));
    Value::Object(process)
}

fn mounts(config: &Config, to: &StandIn<'_>) -> Value {
    let base = to.base.iter().map(|name| {
        let place = Path::new("/").join(name);
        match OF_NAMESPACES.iter().find(|(own, _)| own == name) {
            Some((_, kind)) => json!({"destination": place, "type": kind, "source": kind}),
            None => bind(&place, &place, &["rslave"]),
        }
    });
    let read_only = config.root.as_ref().is_some_and(|root| root.readonly);
    let options: &[&str] = if read_only {
        &["rprivate", "ro"]
    } else {
        &["rprivate"]
    };
    let root = bind(to.rootfs, Path::new(ROOTFS), options);
    let own = to.mounts.iter().map(|mount| {
        json!({
            "destination": mount.destination,
            "type": mount.kind,
            "source": mount.source,
            "options": mount.options,
        })
    });
    Value::Array(base.chain([root]).chain(own).collect())
}

fn bind(from: &Path, to: &Path, options: &[&str]) -> Value {
    let options: Vec<_> = ["rbind"].iter().chain(options).collect();
    json!({"destination": to, "type": "bind", "source": from, "options": options})
}

fn linux(found: &Map<String, Value>) -> Value {
    let mut linux = kept(found, &LINUX);
    let namespaces = found.get("namespaces").and_then(Value::as_array);
    let has = |namespace: &&Value| {
        let kind = namespace["type"].as_str();
        kind.is_some_and(|kind| NAMESPACES.contains(&kind))
    };
    let mut namespaces: Vec<_> = namespaces
        .into_iter()
        .flatten()
        .filter(has)
        .cloned()
        .collect();
    // Its mounts are never the base's.
    if !namespaces
        .iter()
        .any(|namespace| namespace["type"] == "mount")
    {
        namespaces.push(json!({"type": "mount"}));
    }
    linux.insert("namespaces".into(), json!(namespaces));
    let devices = json!([{"allow": true, "access": "rwm"}]);
    let mut resources = Map::from_iter([("devices".to_owned(), devices)]);
    // Its files' traffic is that of the processes that serve them.
    if let Some(limit) = found.get("resources").and_then(|all| all.get("blockIO")) {
        resources.insert("blockIO".into(), limit.clone());
    }
    linux.insert("resources".into(), Value::Object(resources));
    Value::Object(linux)
}

fn kept(found: &Map<String, Value>, keys: &[&str]) -> Map<String, Value> {
    let has = |(key, _): &(&String, &Value)| keys.contains(&key.as_str());
    let kept = found.iter().filter(has);
    kept.map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

fn object(value: &Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap_or_default()
}

/// Whether it mounts a file or folder that there is already.
pub(super) fn is_bind(mount: &Mount) -> bool {
    mount.kind == "bind" || mount.options.iter().any(|option| option.ends_with("bind"))
}

/// Makes the sources of mounts absolute: relative ones begin at the bundle.
pub(super) fn resolve(mount: Mount, bundle: &Path) -> Mount {
    let source = match is_bind(&mount) {
        true => bundle.join(&mount.source),
        false => PathBuf::from(&mount.source),
    };
    Mount { source, ..mount }
}

#[cfg(test)]
mod tests;
