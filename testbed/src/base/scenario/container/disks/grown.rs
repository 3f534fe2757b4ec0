//! Nodes that get memory, and give it back, while their devices are in use: all devices can use the
//! new memory, and no device's server has to be restarted for that.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

use nix::unistd::Pid;

use super::{CONTENT, DISK, FIO};
use crate::base::Finding;
use crate::base::support::device_servers::{self, STORAGE_DAEMON, VIRTIOFSD};
use crate::base::support::insula_command::{
    TIMEOUT, assert_equal, insula, insula_json, text, wait_for,
};
use crate::base::support::nodes::in_node::{short_script, sum_of};

/// Changes of the node's memory.
const MORE: &str = "+128M";
const LESS: &str = "-128M";
/// File that a node serves, and file in the folder that is a node's root, with their sizes in
/// bytes.
const PAGE_BYTES: usize = 4 << 20;
const DATA: &str = "data";
const DATA_BYTES: usize = 4 << 20;

/// Makes the file that is read by way of a node's root.
pub(super) fn make_data() -> Result<(), Finding> {
    let mut random = fastrand::Rng::new();
    let bytes: Vec<u8> = std::iter::repeat_with(|| random.u8(..))
        .take(DATA_BYTES)
        .collect();
    Ok(std::fs::write(Path::new(CONTENT).join(DATA), bytes)?)
}

/// The node's disk and network card use memory that was added later. Linux puts movable pages
/// there, programs' memory and `tmpfs` first of all.
pub(super) fn disk_and_network(node: &str) -> Result<(), Finding> {
    let daemons = resize(node, MORE, STORAGE_DAEMON, DISK)?;
    let (status, output) = short_script(node, &format!("{FIO} --size=4m > /fio 2>&1 || cat /fio"))?;
    assert_equal("end of fio", &(status, output.as_str()), &(0, ""))?;
    assert_same(&daemons, STORAGE_DAEMON, DISK)?;
    let begin = format!(
        "mkdir /run/www && head -c {PAGE_BYTES} /dev/urandom > /run/www/page && \
         httpd -p 80 -h /run/www && sha256sum < /run/www/page"
    );
    let (status, sum) = short_script(node, &begin)?;
    assert_equal("start of httpd", &status, &0)?;
    let view = &insula_json(&["inspect", node])?[0];
    let page = get(&text(&view["address"]))?;
    let read = Path::new("/tmp/page");
    std::fs::write(read, page)?;
    let output = sum_of("/tmp/page");
    std::fs::remove_file(read)?;
    assert_equal("file served by the node", &output?, &sum)
}

/// Its initial memory remains when it has given the rest back.
pub(super) fn less_again(node: &str) -> Result<(), Finding> {
    let daemons = resize(node, LESS, STORAGE_DAEMON, DISK)?;
    let (_, output) = short_script(node, "sha256sum < /dev/vda")?;
    assert_equal("disk read by the base", &sum_of(DISK)?, &output)?;
    assert_same(&daemons, STORAGE_DAEMON, DISK)
}

/// A root by virtiofs: its server could not be restarted.
pub(super) fn root(node: &str) -> Result<(), Finding> {
    let wanted = sum_of(&format!("{CONTENT}/{DATA}"))?;
    for change in [MORE, LESS] {
        let servers = resize(node, change, VIRTIOFSD, CONTENT)?;
        let read = format!("echo 3 > /proc/sys/vm/drop_caches; sha256sum < /{DATA}");
        let (_, output) = short_script(node, &read)?;
        assert_equal(&format!("file read with {change}"), &output, &wanted)?;
        assert_same(&servers, VIRTIOFSD, CONTENT)?;
    }
    Ok(())
}

/// Returns the processes that serve its device.
fn resize(node: &str, change: &str, name: &str, of: &str) -> Result<Vec<Pid>, Finding> {
    let servers = device_servers::find(name, of)?;
    insula(&["update", "--memory", change, node])?;
    Ok(servers)
}

fn assert_same(before: &[Pid], name: &str, of: &str) -> Result<(), Finding> {
    let now = device_servers::find(name, of)?;
    assert_equal(&format!("each {name}"), &&now[..], &before)
}

/// The page, when the node answers.
fn get(address: &str) -> Result<Vec<u8>, Finding> {
    let ask = || -> std::io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect((address, 80))?;
        stream.set_read_timeout(Some(TIMEOUT))?;
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
