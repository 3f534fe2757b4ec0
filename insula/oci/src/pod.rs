//! Containers that share a node, as those of a pod: which node that is, and what such a container has of its own there.
//!
//! The first container of a pod has a node, the *sandbox*; further ones are programs with a root of their own there. An
//! engine says which container that is by an annotation, or has the containers share a network namespace.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use insula_agent::pod::{OwnNamespaces, Share, UNLIMITED};
use insula_agent::restrictions::Restrictions;
use insula_agent::view::View;
use insula_base::error::Error;
use insula_driver::name::Name;
use serde::{Deserialize, Serialize};

use super::config::{Config, Resources};
use super::node::NodeKind;
use super::state::{Record, State, check_id};
use super::{restrictions, view};

/// Annotations of containerd and of CRI-O with the id of the sandbox; podman has that of the pod there, which is none.
const SANDBOX_IDS: [&str; 2] = [
    "io.kubernetes.cri.sandbox-id",
    "io.kubernetes.cri-o.SandboxID",
];

/// What a container is in its node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct Inside {
    /// What it has of its own there.
    pub(super) own: OwnNamespaces,
    /// What it sees of the kernel.
    pub(super) view: View,
    /// What its first process is restricted by.
    pub(super) restrictions: Restrictions,
    /// How much it gets of it.
    pub(super) share: Share,
}

impl Inside {
    /// That of a container of this configuration, on a node of this kind, which is another one's or not.
    pub(super) fn of(config: &Config, kind: NodeKind, is_member: bool) -> Result<Self, Error> {
        let is_own = |kind: &str| {
            let mut all = config.linux.namespaces.iter();
            all.any(|one| one.kind == kind && one.path.as_os_str().is_empty())
        };
        let hostname = is_own("uts").then(|| config.hostname.clone());
        let is_own_name = is_member || kind == NodeKind::Copy;
        let process = config.process.as_ref();
        let restrictions = process.map(restrictions::of).transpose()?;
        Ok(Self {
            own: OwnNamespaces {
                // Else the node is called so, and others of it may share that.
                hostname: hostname.filter(|name| !name.is_empty() && is_own_name),
                ipc: is_own("ipc") && is_member,
                processes: is_own("pid"),
            },
            view: view::of(config)?,
            restrictions: restrictions.unwrap_or_default(),
            share: share(&config.linux.resources, is_member),
        })
    }
}

/// The share of a container with these limits. Those of memory and processor time are the node's size, where it has its own.
pub(super) fn share(limits: &Resources, is_member: bool) -> Share {
    let limit = |limit: i64| match u64::try_from(limit) {
        Ok(limit) if limit > 0 => limit,
        _ => UNLIMITED,
    };
    let time = limits.cpu.time();
    let time = time.map(|(quota, period)| (limit(quota), period));
    Share {
        memory: limits.memory.limit.map(limit).filter(|_| is_member),
        processor_time: time.filter(|_| is_member),
        processes: limits.pids.limit.map(limit),
    }
}

/// A container in the node of another one.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct Member {
    /// Id of the container whose node it is.
    pub(super) sandbox: String,
    /// Its own name there.
    pub(super) name: Name,
}

/// The container whose node that of this configuration is to share; `None` if it gets one of its own.
pub(super) fn sandbox(config: &Config, id: &str) -> Option<Record> {
    named(config, id).or_else(|| with_network_of(config))
}

fn named(config: &Config, id: &str) -> Option<Record> {
    let given = SANDBOX_IDS
        .iter()
        .filter_map(|key| config.annotations.get(*key));
    let mut given = given.filter(|sandbox| sandbox.as_str() != id && check_id(sandbox).is_ok());
    given.find_map(|sandbox| {
        let record = State::of(sandbox).record().ok().flatten();
        record.filter(has_node_to_share)
    })
}

fn with_network_of(config: &Config) -> Option<Record> {
    let mut namespaces = config.linux.namespaces.iter();
    let network =
        namespaces.find(|one| one.kind == "network" && !one.path.as_os_str().is_empty())?;
    let wanted = identity(&network.path)?;
    let mut all = State::all()
        .into_iter()
        .filter_map(|state| state.record().ok().flatten());
    all.find(|record| {
        let pid = record.pid().filter(|_| has_node_to_share(record));
        pid.is_some_and(|pid| identity(Path::new(&format!("/proc/{pid}/ns/net"))) == Some(wanted))
    })
}

/// Whether a container has a Linux node of its own.
fn has_node_to_share(record: &Record) -> bool {
    record.member.is_none() && !record.is_delegated()
}

/// What tells namespaces from each other.
fn identity(namespace: &Path) -> Option<(u64, u64)> {
    let metadata = fs::metadata(namespace).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn config(value: Value) -> Config {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn namespaces_are_the_containers_own_or_the_nodes() {
        let of = |namespaces: Value, is_member: bool| {
            let value = json!({"hostname": "web", "linux": {"namespaces": namespaces}});
            let kind = NodeKind::Linux;
            Inside::of(&config(value), kind, is_member).unwrap().own
        };
        let all = json!([{"type": "uts"}, {"type": "ipc"}, {"type": "pid"}]);
        let own = of(all.clone(), true);
        assert_eq!(own.hostname.as_deref(), Some("web"));
        assert!(own.ipc && own.processes);
        let alone = of(all, false);
        assert!(alone.hostname.is_none() && !alone.ipc && alone.processes);
        let path = |kind: &str| json!({"type": kind, "path": format!("/proc/1/ns/{kind}")});
        for shared in [json!([]), json!([path("uts"), path("ipc"), path("pid")])] {
            assert_eq!(of(shared, true), OwnNamespaces::default());
        }
    }

    #[test]
    fn a_further_container_has_a_share_of_the_node() {
        let limits = json!({
            "memory": {"limit": 5}, "cpu": {"quota": 1, "period": 2}, "pids": {"limit": 7},
        });
        let of = |limits: Value, is_member: bool| {
            let config = config(json!({"linux": {"resources": limits}}));
            share(&config.linux.resources, is_member)
        };
        let member = Share {
            memory: Some(5),
            processor_time: Some((1, 2)),
            processes: Some(7),
        };
        assert_eq!(of(limits.clone(), true), member);
        let alone = Share {
            processes: Some(7),
            ..Share::default()
        };
        assert_eq!(of(limits, false), alone);
        assert_eq!(of(json!({}), true), Share::default());
        let none = json!({"memory": {"limit": -1}, "cpu": {"quota": -1}, "pids": {"limit": 0}});
        let unlimited = Share {
            memory: Some(UNLIMITED),
            processor_time: Some((UNLIMITED, 100_000)),
            processes: Some(UNLIMITED),
        };
        assert_eq!(of(none, true), unlimited);
    }

    #[test]
    fn containers_without_a_sandbox_are_alone() {
        let network = |path: &str| json!({"namespaces": [{"type": "network", "path": path}]});
        for value in [
            json!({}),
            json!({"linux": network("")}),
            json!({"linux": network("/no/such")}),
            json!({"linux": network("/proc/self/ns/net")}),
            json!({"annotations": {SANDBOX_IDS[0]: "web"}}),
            json!({"annotations": {SANDBOX_IDS[0]: "../x", SANDBOX_IDS[1]: "no-such"}}),
        ] {
            assert!(sandbox(&config(value.clone()), "web").is_none(), "{value}");
        }
    }
}
