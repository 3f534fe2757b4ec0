//! A server that is kept running: it starts again whatever ends it, and moves between cores while it serves.

use std::fs;
use std::process::Stdio;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::{FILES, NODE, SERVED, there};
use crate::base::support::device_servers;
use crate::base::support::insula_command::{
    assert_equal, command, insula, insula_json, numbers, text, try_insula, wait_for,
};
use crate::base::{Context, Finding};

const NAME: &str = "file";
/// Cores to which it moves, one after the other.
const PLACES: [&str; 4] = ["0", "1-2", "2", "0-1"];
/// Appends lines while the server moves; each must be there once.
const LINES: &str = "for i in $(seq 1 200); do echo line $i >> /tmp/served/lines; done";

pub(super) fn play(context: &Context) -> Result<(), Finding> {
    let start = ["servers", "start", NODE, NAME, "--cpus", "1", "--", FILES];
    insula(&[&start[..], &["memory", "--size", "32M"]].concat())?;
    let first = running(&[1])?;
    refusals(&start)?;
    moves(context)?;
    insula(&["servers", "move", NODE, NAME, "2"])?;
    // Where it was put it stays.
    killed(&first)?;
    let second = running(&[2])?;
    insula(&["servers", "restart", NODE, NAME])?;
    assert_equal("the same", &(pid(&running(&[2])?) == pid(&second)), &false)?;
    supervisor_killed()?;
    let third = running(&[2])?;
    insula(&["restart", NODE])?;
    another_than(&third)?;
    running(&[2])?;
    stopped()
}

/// The server, which must run on those cores.
fn running(cpus: &[u32]) -> Result<Value, Finding> {
    let found = find()?;
    assert_equal("its state", &text(&found["state"]), &"running".to_owned())?;
    let on = numbers(&found["endpoint"]["cpus"]);
    assert_equal("its cores", &on, &cpus.to_vec())?;
    Ok(found)
}

pub(super) fn find() -> Result<Value, Finding> {
    let listed = insula_json(&["servers", "ls", "--json", NODE])?;
    let mut listed = listed.as_array().into_iter().flatten();
    let found = listed.find(|one| one["name"] == NAME).cloned();
    found.ok_or_else(|| Finding::new("it is not listed"))
}

fn pid(server: &Value) -> Option<u64> {
    server["endpoint"]["pid"].as_u64()
}

/// Waits until it is another process.
fn another_than(old: &Value) -> Result<(), Finding> {
    wait_for("another server", || {
        let now = find()?;
        Ok((now["state"] == "running" && pid(&now) != pid(old)).then_some(()))
    })
}

fn refusals(start: &[&str]) -> Result<(), Finding> {
    let again = [start, &["memory"]].concat();
    try_insula(&again)?.refused(1, &["has a server 'file' already", "nothing was touched"])?;
    let to = |name, cpus| ["servers", "move", NODE, name, cpus];
    try_insula(&to("none", "1"))?.refused(1, &["no server of that name"])?;
    try_insula(&to(NAME, "9"))?.refused(1, &["Invalid argument"])?;
    try_insula(&["servers", "stop", NODE, "none"])?.refused(1, &["no server 'none'"])?;
    try_insula(&["servers", "ls", "none"])?.refused(1, &["no node 'none'"])
}

/// It moves while a program writes: nothing is lost, nothing comes twice.
fn moves(context: &Context) -> Result<(), Finding> {
    fs::create_dir_all("/tmp/served")?;
    let before = find()?["endpoint"]["received"].as_u64();
    let mut writer = command(&there(SERVED, LINES))
        .stdin(Stdio::null())
        .spawn()?;
    let mut moved = 0;
    for cpus in PLACES.iter().cycle() {
        insula(&["servers", "move", NODE, NAME, cpus])?;
        moved += 1;
        if writer.try_wait()?.is_some() && moved >= context.count(4, 100) {
            break;
        }
    }
    let status = writer.wait()?;
    Finding::unless(status.success(), || format!("the writer: {status}"))?;
    let expected: String = (1..=200).map(|number| format!("line {number}\n")).collect();
    let found = insula(&there(SERVED, "cat /tmp/served/lines"))?;
    assert_equal("the lines", &found, &expected)?;
    let server = find()?;
    println!("moved {moved} times: {}", server["endpoint"]);
    let received = server["endpoint"]["received"].as_u64();
    Finding::unless(received > before, || "it counts no requests".into())?;
    let crossings = server["endpoint"]["crossings"].as_u64();
    Finding::unless(crossings > Some(0), || "it counts no crossings".into())
}

/// Its process ends, and it is started again.
pub(super) fn killed(old: &Value) -> Result<(), Finding> {
    let process = pid(old).and_then(|pid| i32::try_from(pid).ok());
    let process = process.ok_or_else(|| Finding::new("it has no process"))?;
    kill(Pid::from_raw(process), Signal::SIGKILL)?;
    another_than(old)?;
    let log = insula(&["servers", "logs", NODE, NAME])?;
    Finding::unless(log.contains("it has ended: signal: 9"), || log.clone())
}

/// Its supervisor ends, and it with it; the next look starts another supervisor.
fn supervisor_killed() -> Result<(), Finding> {
    let old = find()?;
    device_servers::kill_all("insula", &format!("supervise\0{}\0{NAME}", node_id()?))?;
    another_than(&old)
}

fn node_id() -> Result<Value, Finding> {
    Ok(insula_json(&["inspect", NODE])?[0]["id"].clone())
}

/// Then nobody serves, and nothing is left.
fn stopped() -> Result<(), Finding> {
    insula(&["servers", "stop", NODE, NAME])?;
    let listed = insula_json(&["servers", "ls", "--json", NODE])?;
    assert_equal("servers", &listed, &Value::from(Vec::<Value>::new()))?;
    let supervisors = device_servers::find("insula", "servers\0supervise")?;
    assert_equal("supervisors", &supervisors, &Vec::new())
}
