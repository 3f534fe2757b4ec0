use proptest::prelude::*;

use super::*;
use crate::mounts::place;

/// As podman writes it, shortened.
fn podman() -> Value {
    json!({
        "ociVersion": "1.0.2-dev",
        "process": {
            "terminal": true,
            "consoleSize": {"height": 24, "width": 80},
            "user": {"uid": 33, "gid": 33, "umask": 18, "additionalGids": [33]},
            "args": ["sh", "-c", "echo hello"],
            "env": ["PATH=/bin", "TERM=xterm", "SECRET=1"],
            "cwd": "/srv",
            "capabilities": {"bounding": ["CAP_CHOWN"]},
            "rlimits": [{"type": "RLIMIT_NOFILE", "hard": 1024, "soft": 1024}],
            "noNewPrivileges": true,
            "apparmorProfile": "containers-default",
            "oomScoreAdj": 100,
        },
        "root": {"path": "/var/lib/merged", "readonly": true},
        "hostname": "web",
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["mode=755"]},
            {"destination": "/data", "type": "bind", "source": "data", "options": ["rbind", "ro"]},
            {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["tmpcopyup"]},
        ],
        "annotations": {"io.podman.annotations.autoremove": "FALSE"},
        "linux": {
            "cgroupsPath": "/libpod_parent/libpod-0123",
            "maskedPaths": ["/proc/kcore"],
            "namespaces": [
                {"type": "pid"}, {"type": "network"}, {"type": "ipc"}, {"type": "uts"},
                {"type": "mount"}, {"type": "cgroup"},
            ],
            "resources": {
                "devices": [{"allow": false, "access": "rwm"}],
                "memory": {"limit": 1 << 28},
                "blockIO": {"weight": 10},
            },
            "rootfsPropagation": "shared",
            "seccomp": {"defaultAction": "SCMP_ACT_ERRNO"},
            "sysctl": {"net.ipv4.ping_group_range": "0 0"},
        },
        "newerThanThisProgram": {"kept": true},
    })
}

fn rewritten(value: &Value) -> Option<Value> {
    let config: Config = serde_json::from_value(value.clone()).ok()?;
    let mounts: Vec<_> = place(&config.mounts)
        .ok()?
        .into_iter()
        .map(|(mount, _)| resolve(mount, Path::new("/bundle")))
        .collect();
    let stand_in = StandIn {
        words: ["/usr/bin/insula", "oci", "run", "web"]
            .map(String::from)
            .to_vec(),
        root: Path::new("/run/insula/oci/web/root"),
        base: &["etc", "proc", "sys", "usr"].map(String::from),
        rootfs: Path::new("/var/lib/merged"),
        mounts: &mounts,
    };
    Some(rewrite(value, &config, &stand_in))
}

#[test]
fn a_configuration_of_podman() {
    let mut found = rewritten(&podman()).unwrap();
    for set in ["bounding", "effective", "permitted"] {
        let all = found["process"]["capabilities"][set].take();
        assert_eq!(all, json!(&CAPABILITIES[..]));
    }
    let text = serde_json::to_string_pretty(&found).unwrap();
    insta::assert_snapshot!(text);
}

#[test]
fn nothing_of_the_program_is_seen_by_other_users() {
    let text = rewritten(&podman()).unwrap().to_string();
    assert!(
        !text.contains("SECRET") && !text.contains("hello"),
        "{text}"
    );
}

const WORDS: &[&str] = &[
    "", "bind", "/x", "../x", "network", "pid", "user", "TERM=x", "/dev/x",
];
const KEYS: &[&str] = &[
    "process",
    "mounts",
    "linux",
    "namespaces",
    "type",
    "path",
    "options",
    "destination",
    "source",
    "root",
    "readonly",
    "resources",
    "env",
    "args",
    "vm",
    "kernel",
    "user",
];

/// Any JSON, often with the keys and values that count.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        prop::sample::select(WORDS).prop_map(Value::from),
        "[a-z/.=]{0,6}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((prop::sample::select(KEYS), inner), 0..4).prop_map(|all| all
                .into_iter()
                .map(|(key, value)| (key.to_owned(), value))
                .collect()),
        ]
    })
}

/// A configuration with another value somewhere.
fn changed() -> impl Strategy<Value = Value> {
    (any::<prop::sample::Index>(), any_json()).prop_map(|(place, other)| {
        let mut value = podman();
        let count = count(&value);
        replace(&mut value, &mut place.index(count), &other);
        value
    })
}

fn count(value: &Value) -> usize {
    let inside: usize = match value {
        Value::Array(all) => all.iter().map(count).sum(),
        Value::Object(all) => all.values().map(count).sum(),
        _ => 0,
    };
    inside + 1
}

/// Replaces the value that is so many values away.
fn replace(value: &mut Value, distance: &mut usize, other: &Value) -> bool {
    if *distance == 0 {
        *value = other.clone();
        return true;
    }
    *distance -= 1;
    match value {
        Value::Array(all) => all.iter_mut().any(|one| replace(one, distance, other)),
        Value::Object(all) => all.values_mut().any(|one| replace(one, distance, other)),
        _ => false,
    }
}

proptest! {
    #[test]
    fn any_configuration_is_refused_or_rewritten(value in prop_oneof![any_json(), changed()]) {
        let Some(found) = rewritten(&value) else {
            return Ok(());
        };
        prop_assert_eq!(&found["process"]["args"][0], "/usr/bin/insula");
        prop_assert_eq!(&found["process"]["user"], &json!({"uid": 0, "gid": 0}));
        prop_assert_eq!(&found["root"]["path"], "/run/insula/oci/web/root");
        prop_assert_eq!(&found["vm"], &Value::Null);
        for key in found["linux"].as_object().unwrap().keys() {
            let known = ["cgroupsPath", "namespaces", "resources"];
            prop_assert!(known.contains(&key.as_str()), "{}", key);
        }
        for namespace in found["linux"]["namespaces"].as_array().unwrap() {
            let kind = namespace["type"].as_str().unwrap();
            prop_assert!(NAMESPACES.contains(&kind), "{}", kind);
        }
        // The container's are where no link of it can lead elsewhere.
        let mounts = found["mounts"].as_array().unwrap();
        for mount in &mounts[4..] {
            let place = mount["destination"].as_str().unwrap();
            prop_assert!(place.starts_with("/.container/"), "{}", place);
        }
    }
}
