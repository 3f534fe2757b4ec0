//! Nodes that get memory, and give it back, while their devices are at work: what lies in that memory
//! goes through all of them, and nobody who serves a device has to be replaced for it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

use nix::unistd::Pid;

use super::super::Finding;
use super::super::in_node::{script, sum_of};
use super::super::insula_command::{PATIENCE, assert_equal, insula, insula_json, text, wait_for};
use super::{CONTENT, DISK, FIO, STORAGE_DAEMON, VIRTIOFSD, servers};

/// What the node gets and gives back.
const MORE: &str = "+128M";
const LESS: &str = "-128M";
/// A file that a node serves, and one in the folder that is a node's root: their sizes in bytes.
const PAGE_BYTES: usize = 8 << 20;
const DATA: &str = "data";
const DATA_BYTES: usize = 8 << 20;

/// Makes the file that is read by way of a node's root.
pub(super) fn make_data() -> Result<(), Finding> {
    let mut random = fastrand::Rng::new();
    let bytes: Vec<u8> = std::iter::repeat_with(|| random.u8(..))
        .take(DATA_BYTES)
        .collect();
    Ok(std::fs::write(Path::new(CONTENT).join(DATA), bytes)?)
}

/// The node's disk and network card take what lies in memory that came later. Linux puts there what it
/// can move, programs' own memory and what is in `tmpfs` first of all.
pub(super) fn disk_and_network(node: &str) -> Result<(), Finding> {
    let daemons = resize(node, MORE, STORAGE_DAEMON, DISK)?;
    let (status, told) = script(node, &format!("{FIO} --size=4m > /fio 2>&1 || cat /fio"))?;
    assert_equal("how fio ended", &(status, told.as_str()), &(0, ""))?;
    assert_same(&daemons, STORAGE_DAEMON, DISK)?;
    let begin = format!(
        "mkdir /run/www && head -c {PAGE_BYTES} /dev/urandom > /run/www/page && \
         httpd -p 80 -h /run/www && sha256sum < /run/www/page"
    );
    let (status, sum) = script(node, &begin)?;
    assert_equal("how httpd began", &status, &0)?;
    let view = &insula_json(&["inspect", node])?[0];
    let page = get(&text(&view["address"]))?;
    let read = Path::new("/tmp/page");
    std::fs::write(read, page)?;
    let told = sum_of("/tmp/page");
    std::fs::remove_file(read)?;
    assert_equal("what the node serves", &told?, &sum)
}

/// What it had remains its own when it has given the rest back.
pub(super) fn less_again(node: &str) -> Result<(), Finding> {
    let daemons = resize(node, LESS, STORAGE_DAEMON, DISK)?;
    let (_, told) = script(node, "sha256sum < /dev/vda")?;
    assert_equal("what the base sees", &sum_of(DISK)?, &told)?;
    assert_same(&daemons, STORAGE_DAEMON, DISK)
}

/// A root by virtiofs: its server could not be replaced.
pub(super) fn root(node: &str) -> Result<(), Finding> {
    let wanted = sum_of(&format!("{CONTENT}/{DATA}"))?;
    for change in [MORE, LESS] {
        let servers = resize(node, change, VIRTIOFSD, CONTENT)?;
        let read = format!("echo 3 > /proc/sys/vm/drop_caches; sha256sum < /{DATA}");
        let (_, told) = script(node, &read)?;
        assert_equal(&format!("what it reads with {change}"), &told, &wanted)?;
        assert_same(&servers, VIRTIOFSD, CONTENT)?;
    }
    Ok(())
}

/// Answers who serves its device.
fn resize(node: &str, change: &str, name: &str, of: &str) -> Result<Vec<Pid>, Finding> {
    let servers = servers(name, of)?;
    insula(&["update", "--memory", change, node])?;
    Ok(servers)
}

fn assert_same(before: &[Pid], name: &str, of: &str) -> Result<(), Finding> {
    let now = servers(name, of)?;
    assert_equal(&format!("each {name}"), &&now[..], &before)
}

/// The page, when the node answers.
fn get(address: &str) -> Result<Vec<u8>, Finding> {
    let ask = || -> std::io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect((address, 80))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(b"GET /page HTTP/1.0\r\n\r\n")?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(answer)
    };
    let whole = |answer: Vec<u8>| {
        let start = answer.len().checked_sub(PAGE_BYTES)?;
        Some(answer[start..].to_vec())
    };
    wait_for("the page", || Ok(ask().ok().and_then(whole)))
}
