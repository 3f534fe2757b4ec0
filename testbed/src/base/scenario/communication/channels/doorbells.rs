//! Doorbells that move between the base's cores while they are in use.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;

use super::echo;
use crate::base::Finding;
use crate::base::support::insula_command::wait_for;
use crate::base::support::nodes::peer_node::Peer;
use crate::node::peer::numbered;

/// The base's doorbell moves from core to core, and its core goes offline, while both sides sleep
/// most of the time. A lost doorbell would be a wait without end.
pub(super) fn move_while_used(peer: &Peer, moves: u64) -> Result<(), Finding> {
    let mut end = peer.open(3)?;
    echo(&mut end, b"ready")?;
    let moved = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mover = scope.spawn(|| {
            let result = move_doorbell(moves);
            moved.store(true, Ordering::Relaxed);
            result
        });
        let mut number = 0;
        let mut echoes = || {
            while !moved.load(Ordering::Relaxed) {
                echo(&mut end, &numbered(number, 30))?;
                number += 1;
            }
            Ok(())
        };
        let result = echoes();
        let moved = mover
            .join()
            .unwrap_or_else(|_| Err(Finding::new("a move panicked")));
        result.and(moved)
    })
}

fn move_doorbell(moves: u64) -> Result<(), Finding> {
    let switch = Path::new("/sys/devices/system/cpu/cpu1/online");
    let interrupts = doorbells()?;
    Finding::unless(!interrupts.is_empty(), || {
        "no doorbell in /proc/interrupts".into()
    })?;
    for round in 0..moves {
        let core = if round % 2 == 0 { "1" } else { "0" };
        for interrupt in &interrupts {
            // The last move may still be pending.
            wait_for("an interrupt to be moved", || {
                match fs::write(interrupt.join("smp_affinity_list"), core) {
                    Err(error) if error.raw_os_error() == Some(Errno::EBUSY as i32) => Ok(None),
                    result => Ok(Some(result?)),
                }
            })?;
        }
        if round % 8 == 0 {
            fs::write(switch, "0")?;
            fs::write(switch, "1")?;
        }
    }
    Ok(())
}

/// Folders of the doorbells in /proc/irq.
fn doorbells() -> Result<BTreeSet<PathBuf>, Finding> {
    let interrupts = fs::read_to_string("/proc/interrupts")?;
    let ours = interrupts.lines().filter(|line| line.ends_with(" insula"));
    let numbers = ours.filter_map(|line| line.split(':').next());
    Ok(numbers
        .map(|number| Path::new("/proc/irq").join(number.trim()))
        .collect())
}
