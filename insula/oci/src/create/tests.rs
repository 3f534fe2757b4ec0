use std::ffi::OsString;

use serde_json::json;

use super::*;

/// A bundle with this configuration.
fn bundle(folder: &Path, config: &Value) -> Result<Bundle, Error> {
    fs::write(folder.join(FILE), config.to_string()).unwrap();
    let words = ["create", "--bundle", folder.to_str().unwrap(), "web"];
    Bundle::read(&Arguments::parse(words.iter().map(OsString::from)))
}

fn config() -> Value {
    json!({
        "root": {"path": "rootfs"},
        "process": {"args": ["true"], "cwd": "/"},
        "mounts": null,
        "linux": {"namespaces": [{"type": "network"}, {"type": "pid"}]},
    })
}

#[test]
fn a_bundle_becomes_another_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().canonicalize().unwrap();
    let (record, config) = bundle(&path, &config())
        .unwrap()
        .container(NodeKind::Linux)
        .unwrap();
    assert_eq!((record.node.as_str(), &record.bundle), ("web", &path));
    assert_eq!(record.process.args, ["true"]);
    let mounts = config["mounts"].as_array().unwrap();
    let root = mounts
        .iter()
        .find(|mount| mount["destination"] == ROOTFS)
        .unwrap();
    assert_eq!(root["source"], json!(path.join("rootfs")));
    let hook = &config["hooks"]["poststop"][0]["args"];
    assert_eq!(
        (&hook[1], &hook[2], &hook[3]),
        (&json!("oci"), &json!("forget"), &json!("web"))
    );
    // As it is kept.
    let kept = serde_json::to_vec(&record).unwrap();
    let kept: Record = serde_json::from_slice(&kept).unwrap();
    assert_eq!((kept.spec, kept.process), (record.spec, record.process));
}

#[test]
fn what_is_no_bundle_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let missing = ["create", "-b", "/no/such", "web"];
    let missing = Bundle::read(&Arguments::parse(missing.iter().map(OsString::from)));
    assert!(missing.err().unwrap().what.contains("/no/such"));
    for (key, value, says) in [
        ("root", Value::Null, "`root`"),
        ("root", json!(7), "no container's configuration"),
        ("process", Value::Null, "`process.args`"),
        ("process", json!({"args": []}), "`process.args`"),
        (
            "mounts",
            json!([{"destination": 1}]),
            "no container's configuration",
        ),
    ] {
        let mut config = config();
        config[key] = value;
        let error = bundle(folder.path(), &config).err().unwrap();
        assert!(error.what.contains(says), "{error}");
    }
    fs::write(folder.path().join(FILE), "{").unwrap();
    let words = ["run", "-b", folder.path().to_str().unwrap(), "web"];
    assert!(Bundle::read(&Arguments::parse(words.iter().map(OsString::from))).is_err());
    let other = ["create", "-b", folder.path().to_str().unwrap(), "../web"];
    let other = Bundle::read(&Arguments::parse(other.iter().map(OsString::from)));
    assert!(other.err().unwrap().what.contains("../web"));
}

#[test]
fn user_namespaces_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config();
    config["linux"]["namespaces"] = json!([{"type": "network"}, {"type": "user"}]);
    let error = bundle(folder.path(), &config)
        .unwrap()
        .container(NodeKind::Linux)
        .unwrap_err();
    assert!(error.what.contains("user namespace"), "{error}");
}

#[test]
fn the_agent_finds_its_folders() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("dev")).unwrap();
    make_mount_points(root.path()).unwrap();
    assert!(
        OF_THE_NODE
            .iter()
            .all(|place| root.path().join(&place[1..]).is_dir())
    );
    assert!(make_mount_points(&root.path().join("none")).is_err());
}
