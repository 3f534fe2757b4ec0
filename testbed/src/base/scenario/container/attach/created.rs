//! A node that is created, given another name, and started.

use serde_json::Value;

use super::{ECHOES, IMAGE, NODE, options};
use crate::base::Finding;
use crate::base::support::insula_command::{
    assert_equal, insula, insula_json, insula_json_lines, try_insula,
};

/// Its first name.
const FIRST: &str = "later";
/// What shows the owners of all cores.
const CORES: [&str; 3] = ["machine", "info", "--json"];

/// Left running, by its last name.
pub(super) fn is_started_later() -> Result<(), Finding> {
    refusals()?;
    let before = insula_json(&CORES)?["cores"].clone();
    let create = [&["create"], &options(FIRST, &["--interactive"], ECHOES)[..]].concat();
    assert_equal("what it prints", &insula(&create)?.as_str(), &"later\n")?;
    try_insula(&create)?.refused(1, &["there is a node 'later' already"])?;
    let run = [&["run"], &options(FIRST, &[], ECHOES)[..]].concat();
    try_insula(&run)?.refused(1, &["there is a node 'later' already"])?;
    is_only_created()?;
    let now = insula_json(&CORES)?["cores"].clone();
    assert_equal("the machine's cores", &now, &before)?;
    insula(&["rename", FIRST, NODE])?;
    insula(&["start", NODE])?;
    let node = &insula_json(&["inspect", NODE])?[0];
    assert_equal("its state", &node["state"], &"running".into())?;
    try_insula(&["inspect", FIRST])?.refused(1, &["there is no node"])?;
    has_events()?;
    waits_for_its_turn()
}

/// What can never be started is refused.
fn refusals() -> Result<(), Finding> {
    let base = ["create", "--image"];
    for (options, why) in [
        (&["nothing"][..], "nothing"),
        (&[IMAGE, "--cpus", "200"], "cores"),
        (&[IMAGE, "--memory", "900G"], "memory"),
        (&[IMAGE, "--memory", "2M"], "to start"),
        (&[IMAGE, "--rootfs", "/tmp/none"], "/tmp/none"),
        (&["lwk", "--", "/bin/true"], "insula exec"),
    ] {
        try_insula(&[&base, options].concat())?.refused(1, &[why])?;
    }
    Ok(())
}

/// It is known, and has nothing.
fn is_only_created() -> Result<(), Finding> {
    assert_equal("nodes that run", &insula(&["ps", "-q"])?.as_str(), &"")?;
    let listed = insula(&["ps", "-q", "--filter", "state=created"])?;
    assert_equal("nodes that were created", &listed.as_str(), &"later\n")?;
    let node = &insula_json(&["inspect", FIRST])?[0];
    let found = ["state", "starts", "memory_bytes"].map(|key| node[key].clone());
    assert_equal("it", &found, &["created".into(), 0.into(), 0.into()])?;
    for words in [
        &["exec", FIRST, "--", "true"][..],
        &["attach", FIRST],
        &["stop", FIRST],
        &["logs", FIRST],
    ] {
        let status = match words[0] {
            "exec" | "attach" => 125,
            _ => 1,
        };
        try_insula(words)?.refused(status, &["not started yet", "insula start later"])?;
    }
    Ok(())
}

fn has_events() -> Result<(), Finding> {
    let events = insula_json_lines(&["events", "--no-stream", "--json"])?;
    let of = |name: &str| {
        let own = events.iter().filter(|event| event["name"] == name);
        own.map(|event| event["status"].clone()).collect::<Vec<_>>()
    };
    assert_equal("its first events", &of(FIRST), &vec!["create".into()])?;
    let then: Vec<Value> = vec!["rename".into(), "start".into()];
    assert_equal("its later events", &of(NODE), &then)
}

/// What another node has now is no reason to refuse a node that is started later. Removed, it is gone.
fn waits_for_its_turn() -> Result<(), Finding> {
    let all = ["create", "--image", IMAGE, "--name", "all", "--cpus", "3"];
    insula(&all)?;
    try_insula(&["start", "all"])?.refused(1, &["cores"])?;
    insula(&["rm", "all"])?;
    try_insula(&["inspect", "all"])?.refused(1, &["there is no node 'all'"])
}
