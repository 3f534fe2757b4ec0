//! Robust locks that a program of the node and one of the base share: either is killed while it has
//! the lock.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::process::{Child, Stdio};

use nix::libc;

use super::sharing::Place;
use crate::base::Finding;
use crate::base::support::insula_command::{assert_equal, wait_for};
use crate::lwk::memory::answers::PAGE;

const PATH: &str = "/dev/shm/lock";

/// The other side gets the lock, and is told, once the owner has stopped.
pub(super) fn outlive_their_owners() -> Result<(), Finding> {
    for protocol in ["none", "inherit"] {
        for (owner, waiter) in [(Place::Node, Place::Base), (Place::Base, Place::Node)] {
            is_passed_on(protocol, owner, waiter)?;
        }
    }
    Ok(std::fs::remove_file(PATH)?)
}

fn is_passed_on(protocol: &str, owner: Place, waiter: Place) -> Result<(), Finding> {
    let file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(PATH)?;
    file.set_len(PAGE as u64)?;
    let mut holder = holder(protocol, owner)?;
    let mut waiting = waiter.command(&["robust_waiter", PATH]);
    let waiting = waiting.stdout(Stdio::piped()).spawn()?;
    wait_for("a waiter for the lock", || {
        let mut word = [0; 4];
        file.read_exact_at(&mut word, 0)?;
        Ok((u32::from_le_bytes(word) & libc::FUTEX_WAITERS != 0).then_some(()))
    })?;
    holder.kill()?;
    let ended = waiting.wait_with_output()?;
    holder.wait()?;
    let what = format!("owner on the {owner}, {protocol}: {}", ended.status);
    let wanted = format!(
        "[{}, 0, 0], the owner works no more: true\n",
        libc::EOWNERDEAD
    );
    assert_equal(
        &what,
        &String::from_utf8_lossy(&ended.stdout).as_ref(),
        &wanted.as_str(),
    )
}

/// Starts the owner, which computes on.
fn holder(protocol: &str, place: Place) -> Result<Child, Finding> {
    let mut holder = place.command(&["robust_holder", PATH, protocol]);
    let mut holder = holder.stdout(Stdio::piped()).spawn()?;
    let output = holder.stdout.take().map(BufReader::new);
    let mut line = String::new();
    output.map_or(Ok(0), |mut output| output.read_line(&mut line))?;
    assert_equal("the owner's first line", &line.as_str(), &"holds\n")?;
    Ok(holder)
}
