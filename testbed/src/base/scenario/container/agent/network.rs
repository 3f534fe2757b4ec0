//! Network of nodes: a server in one, addresses that are chosen, and what remains in the base.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};

use super::{
    ADDRESS, CLIENT, OPEN_PORT, PUBLISH, SERVER, copies, data, outside, script, sum, verbs,
};
use crate::base::Finding;
use crate::base::support::hold::Hold;
use crate::base::support::insula_command::{
    Answer, TIMEOUT, assert_equal, command, insula, insula_json, text, try_insula, wait_for,
};

/// The base and another node read from a server in a node. No trace of it remains in the base.
pub(super) fn serves() -> Result<(), Finding> {
    let published = ["run", "--image", "image-6.1", "--publish", PUBLISH];
    try_insula(&published)?.refused(1, &["8080", "nothing was touched"])?;
    for (address, owner) in [
        (ADDRESS, SERVER.1),
        ("10.79.0.7", "10.78.0.0/16"),
        ("10.77.0.7", "10.78.0.2"),
    ] {
        let taken = ["run", "--image", "image-6.1", "--ip", address];
        try_insula(&taken)?.refused(1, &[address, owner, "nothing was touched"])?;
    }
    outside::hides_no_other_network()?;
    let mut answer = Vec::new();
    let mut stream = TcpStream::connect("127.0.0.1:8080")?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(b"GET /data HTTP/1.0\r\n\r\n")?;
    stream.read_to_end(&mut answer)?;
    Finding::unless(answer.ends_with(&fs::read(data())?), || {
        format!("the base read {} bytes of something else", answer.len())
    })?;
    let server = &insula_json(&["inspect", SERVER.1])?[0];
    assert_equal("its address", &text(&server["address"]), &ADDRESS.into())?;
    let get = format!(
        "busybox wget -q -O - http://{}/data | sha256sum",
        text(&server["address"])
    );
    assert_equal(
        "file read by another node",
        &script(CLIENT, &[], &get)?.1,
        &sum()?,
    )?;
    is_in_statistics()?;
    outside::is_reached_from(CLIENT)?;
    outside::reaches_nothing(ADDRESS)?;
    outside::is_relayed_beside_a_firewall(SERVER.1, OPEN_PORT)?;
    copies::between_nodes()?;
    verbs::play()?;
    insula(&["rm", "--force", CLIENT])?;
    wait_for("virtiofsd to end", || {
        let found = Command::new("pidof").arg("virtiofsd").output()?;
        Ok((!found.status.success()).then_some(()))
    })?;
    network_gone()?;
    outside::is_closed()
}

/// What Linux nodes have used is in the statistics: one that serves files has read and sent them.
fn is_in_statistics() -> Result<(), Finding> {
    let stats = insula_json(&["stats", SERVER.1, "--json"])?;
    let usage = &stats[0]["usage"];
    let of = |keys: [&str; 2]| usage[keys[0]][keys[1]].as_u64().unwrap_or_default();
    let served = fs::metadata(data())?.len();
    let all = usage["memory_bytes"].as_u64();
    let is_told = of(["network", "out_bytes"]) > served
        && usage["cpu_ns"].as_u64() > Some(0)
        && usage["memory_available_bytes"].as_u64() < all
        && all <= stats[0]["memory_bytes"].as_u64();
    Finding::unless(is_told, || format!("it has used {stats}"))?;
    let text = insula(&["stats", "--prometheus"])?;
    let line = format!("insula_node_network_transmit_bytes_total{{node=\"{CLIENT}\"}} ");
    Finding::unless(text.contains(&line), || {
        format!("for Prometheus there is {text}")
    })
}

/// Several nodes request one address at once: one gets it; the others' errors name it. While one is
/// being made, the others wait for that.
pub(super) fn simultaneous_claims() -> Result<(), Finding> {
    let hold = Hold::asleep("insula_node_create")?;
    let names = ["one", "two", "three"];
    let started = names.map(|name| {
        let run = ["run", "--image", "image-6.1", "--name", name];
        let more = ["--memory", "128M", "--ip", ADDRESS];
        command(&[&run[..], &more].concat())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
    });
    hold.wait()?;
    wait_for("the other nodes to wait for the first", || {
        let locks = fs::read_to_string("/proc/locks")?;
        let waiting = locks.lines().filter(|line| line.contains("-> FLOCK"));
        Ok((waiting.count() == names.len() - 1).then_some(()))
    })?;
    hold.release()?;
    let mut answers = Vec::new();
    for child in started {
        answers.push(Answer::new(&["run"], &child?.wait_with_output()?));
    }
    let (had, refused): (Vec<_>, _) = answers
        .into_iter()
        .partition(|answer| answer.status == Some(0));
    let refused: Vec<Answer> = refused;
    assert_equal("nodes that have the address", &had.len(), &1)?;
    let winner = had[0].output.trim().to_owned();
    for answer in refused {
        answer.refused(1, &[ADDRESS, &winner])?;
    }
    insula(&["rm", "--force", &winner])?;
    network_gone()
}

/// Waits until the base has no network of nodes any more.
pub(super) fn network_gone() -> Result<(), Finding> {
    wait_for("the nodes' network to be removed", || {
        Ok((!Path::new("/sys/class/net/insula0").exists()).then_some(()))
    })
}
