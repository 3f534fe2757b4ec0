//! Servers that a file describes: `insula up` starts, moves, restarts and stops them.

use std::fs;

use serde_json::Value;

use super::FILES;
use crate::base::Finding;
use crate::base::support::insula_command::{
    assert_equal, insula, insula_json, numbers, text, try_insula,
};

const FOLDER: &str = "/tmp/described";
const FILE: &str = "/tmp/described/insula.toml";
const NODE: &str = "described";

pub(super) fn play() -> Result<(), Finding> {
    fs::create_dir(FOLDER)?;
    up_does("start", &server("\"memory\"", "0"))?;
    up_does("keep", &server("\"memory\"", "0"))?;
    let first = listed()?;
    up_does("move", &server("\"memory\"", "1"))?;
    let moved = listed()?;
    assert_equal("its cores", &numbers(&moved["cpus"]), &vec![1])?;
    assert_equal("its process", &moved["pid"], &first["pid"])?;
    up_does("restart", &server("\"memory\", \"--size\", \"16M\"", "1"))?;
    assert_equal("the same", &(listed()?["pid"] == moved["pid"]), &false)?;
    up_does("remove", "")?;
    refusals()?;
    insula(&["down", "--file", FILE])?;
    fs::remove_dir_all(FOLDER)?;
    Ok(())
}

fn refusals() -> Result<(), Finding> {
    write(&server("\"memory\"", "7"))?;
    let refused = ["has no core 7", "nothing was touched"];
    try_insula(&["up", "--file", FILE])?.refused(1, &refused)?;
    insula(&["servers", "start", NODE, "file", "--", FILES, "memory"])?;
    write(&server("\"memory\"", "0"))?;
    let refused = ["not of this project", "insula servers stop"];
    try_insula(&["up", "--file", FILE])?.refused(1, &refused)
}

/// The table of a server with those arguments, on those cores.
fn server(arguments: &str, cpus: &str) -> String {
    format!("[servers.{NODE}.file]\ncommand = [\"{FILES}\", {arguments}]\ncpus = \"{cpus}\"\n")
}

/// Writes the file: a node, and servers.
fn write(servers: &str) -> Result<(), Finding> {
    let node = format!("[nodes.{NODE}]\nimage = \"lwk\"\ncpus = 2\nmemory = \"128M\"\n");
    Ok(fs::write(FILE, node + servers)?)
}

/// `insula up` with these servers does that for one, and nothing for others.
fn up_does(expected: &str, servers: &str) -> Result<(), Finding> {
    write(servers)?;
    let report = insula_json(&["up", "--file", FILE, "--json"])?;
    let done = report["nodes"][0]["servers"].as_array();
    let done: Vec<_> = done.into_iter().flatten().collect();
    let actions: Vec<_> = done.iter().map(|one| text(&one["action"])).collect();
    assert_equal("what was done", &actions, &vec![expected.to_owned()])
}

fn listed() -> Result<Value, Finding> {
    Ok(insula_json(&["servers", "ls", "--json", NODE])?[0]["endpoint"].clone())
}
