use proptest::prelude::*;
use serde_json::json;

use super::*;

#[test]
fn what_has_its_default_is_left_out() {
    // Otherwise a new option would change the digests of all nodes, and restart them.
    assert_eq!(
        serde_json::to_value(NodeSpec::default()).unwrap(),
        json!({})
    );
}

#[test]
fn an_unknown_key_is_refused() {
    let read = serde_json::from_value::<NodeSpec>(json!({ "colour": "blue" }));
    assert!(read.is_err());
}

#[test]
fn words_that_are_not_utf8_are_kept() {
    let spec = NodeSpec {
        program: Some(vec!["/bin/x".into(), os(b"\xff\xfe")]),
        ..NodeSpec::default()
    };
    let text = serde_json::to_string(&spec).unwrap();
    assert_eq!(text, r#"{"program":["/bin/x",[255,254]]}"#);
    assert_eq!(serde_json::from_str::<NodeSpec>(&text).unwrap(), spec);
}

fn os(bytes: &[u8]) -> OsString {
    use std::os::unix::ffi::OsStrExt;
    OsStr::from_bytes(bytes).to_owned()
}

#[test]
fn equal_nodes_have_equal_forms() {
    let plain = NodeSpec::default();
    let written_out = NodeSpec {
        cpus: Some(1),
        append: " ".into(),
        after: vec!["db".parse().unwrap()],
        ready: Some(Ready {
            log: "up".into(),
            timeout_s: 1,
        }),
        ..NodeSpec::default()
    };
    assert_eq!(written_out.normalized(), plain.normalized());
    let address = || NodeSpec {
        ip: Some([10, 78, 0, 7].into()),
        ..NodeSpec::default()
    };
    let twice = NodeSpec {
        network: NetworkSpec::Default,
        ..address()
    };
    assert_eq!(twice.normalized(), address().normalized());
    let other = NodeSpec {
        cpus: Some(2),
        ..NodeSpec::default()
    };
    assert_ne!(other.normalized(), plain.normalized());
}

#[test]
fn relative_paths_start_at_the_folder() {
    let mut spec: NodeSpec =
        serde_json::from_value(json!({ "rootfs": "root", "disk": ["data,ro", "/dev/sdb"] }))
            .unwrap();
    spec.resolve(Path::new("/srv/shop"));
    assert_eq!(spec.rootfs.as_deref(), Some(Path::new("/srv/shop/root")));
    let disks: Vec<_> = spec.disk.iter().map(ToString::to_string).collect();
    assert_eq!(disks, ["/srv/shop/data,ro", "/dev/sdb"]);
}

#[test]
fn each_inconsistency_is_named_by_its_key() {
    let keys = |value| {
        let spec: NodeSpec = serde_json::from_value(value).unwrap();
        let errors = spec.check().err().unwrap_or_default();
        errors
            .into_iter()
            .map(|error| error.option)
            .collect::<Vec<_>>()
    };
    assert_eq!(keys(json!({})), [""; 0]);
    assert_eq!(keys(json!({ "cpus": 0 })), ["cpus"]);
    assert_eq!(keys(json!({ "cpus": 1, "cpu_list": "2" })), ["cpus"]);
    assert_eq!(keys(json!({ "cpu_list": [] })), ["cpu_list"]);
    assert_eq!(keys(json!({ "cpus": 3, "max_cpus": 2 })), ["max_cpus"]);
    assert_eq!(keys(json!({ "max_cpus": 257 })), ["max_cpus"]);
    assert_eq!(keys(json!({ "memory": [] })), ["memory"]);
    assert_eq!(keys(json!({ "overlay": true })), ["overlay"]);
    assert_eq!(keys(json!({ "program": [] })), ["program"]);
    assert_eq!(keys(json!({ "program": ["a\0b"] })), ["program"]);
    assert_eq!(
        keys(json!({ "image": "lwk", "program": ["a"] })),
        ["program"]
    );
    assert_eq!(keys(json!({ "network_poll_us": 50 })), ["network_poll_us"]);
    let polls = |poll_us: u32| json!({ "network": true, "network_poll_us": poll_us });
    assert_eq!(keys(polls(50)), [""; 0]);
    assert_eq!(keys(polls(2_000_000)), ["network_poll_us"]);
    assert_eq!(keys(json!({ "ready": { "log": "a\nb" } })), ["ready.log"]);
    assert_eq!(keys(json!({ "memory": [], "cpus": 0 })), ["cpus", "memory"]);
}

fn spec() -> impl Strategy<Value = NodeSpec> {
    let memory = (
        1_u64..1 << 40,
        proptest::option::of(0_u32..8),
        proptest::option::of(1_u64..9),
    );
    let memory = memory.prop_map(|(granules, numa_node, chunk)| MemorySpec {
        size: Size(granules * insula_abi::GRANULE),
        numa_node,
        below: None,
        above: None,
        chunk: chunk.map(|granules| Size(granules * insula_abi::GRANULE)),
    });
    let numbers = proptest::collection::vec(0_u32..65_536, 1..5);
    let program = proptest::collection::vec(any::<Vec<u8>>(), 0..3);
    (
        proptest::option::of(numbers),
        proptest::collection::vec(memory, 0..3),
        proptest::option::of(program),
        any::<(bool, u16, bool, String)>(),
    )
        .prop_map(
            |(numbers, memory, program, (overlay, port, is_read_only, append))| NodeSpec {
                cpu_list: numbers.map(CpuList),
                memory,
                overlay,
                publish: vec![format!("127.0.0.1:{}:80", port.max(1)).parse().unwrap()],
                disk: vec![DiskSpec {
                    path: "/srv/disk".into(),
                    read_only: is_read_only,
                }],
                program: program.map(|words| words.iter().map(|word| os(word)).collect()),
                append,
                ..NodeSpec::default()
            },
        )
}

proptest! {
    #[test]
    fn a_record_reads_back(spec in spec()) {
        let text = serde_json::to_vec(&spec).unwrap();
        prop_assert_eq!(serde_json::from_slice::<NodeSpec>(&text).unwrap(), spec);
    }
}
