//! A server on the node, its clients on the base.

use std::process::{Command, Stdio};

use super::on_node;
use crate::base::Finding;
use crate::base::support::insula_command::{assert_equal, wait_for};

const PORT: &str = "7379";

/// Redis answers `redis-benchmark` and ends on request.
pub(super) fn serves() -> Result<(), Finding> {
    let words = [
        "/usr/bin/redis-server",
        "--port",
        PORT,
        "--save",
        "",
        "--bind",
        "127.0.0.1",
    ];
    let mut server = on_node(&words)
        .stdout(Stdio::null())
        .stderr(Stdio::inherit())
        .spawn()?;
    let served = wait_for("redis to answer", || {
        Ok((client("redis-cli", &["ping"])? == "PONG\n").then_some(()))
    })
    .and_then(|()| {
        client(
            "redis-benchmark",
            &["-n", "300", "-c", "5", "-q", "-t", "set,incr"],
        )
    })
    .and_then(|report| {
        let figures = report.matches("requests per second").count();
        assert_equal("figures of redis-benchmark", &(figures >= 2), &true)?;
        let count = client("redis-cli", &["get", "counter:__rand_int__"])?;
        assert_equal("the counter", &count.as_str(), &"300\n")?;
        client("redis-cli", &["shutdown", "nosave"]).map(drop)
    });
    if served.is_err() {
        server.kill()?;
    }
    let ended = server.wait()?;
    served?;
    assert_equal("redis' status", &ended.code(), &Some(0))
}

fn client(program: &str, words: &[&str]) -> Result<String, Finding> {
    let output = Command::new(program)
        .args(["-p", PORT])
        .args(words)
        .output()?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
