//! Copying a container's memory while it runs, before it is moved: in rounds, each of what has changed in
//! the one before, as long as they become shorter.

use std::path::Path;

use insula_base::error::{Error, Kind};
use insula_driver::Driver;

use super::ask::refused;
use super::peer::{IsLast, Peer};
use super::record::ContainerRecord;
use super::transfer::is_it;
use crate::agent::Location;

/// Bytes that take less time to copy than another round does.
const FEW_BYTES: u64 = 4 << 20;
/// Most rounds: a program that goes on changing its memory is moved all the same.
const ROUNDS_MAX: usize = 6;

/// The ends of a move, with the memory that was copied already.
pub(super) struct PreCopied<'a> {
    from: Peer<'a>,
    to: Peer<'a>,
    source: &'a Location,
    record: ContainerRecord,
    /// Bytes of each round.
    rounds: Vec<u64>,
}

impl<'a> PreCopied<'a> {
    /// Copies the memory of a container.
    pub(super) fn copy(
        driver: &Driver,
        record: &ContainerRecord,
        (source, target): (&'a Location, &'a Location),
        rootfs: Option<&Path>,
    ) -> Result<Self, Error> {
        let mut from = Peer::connect(driver, source)?;
        let dumped = from.pre_copy(&record.name)?;
        is_it(record, &dumped).map_err(|reason| refused(source, reason))?;
        let mut to = Peer::connect(driver, target)?;
        to.restore(dumped, rootfs)?;
        let mut copied = Self {
            from,
            to,
            source,
            record: record.clone(),
            rounds: Vec::new(),
        };
        while is_worth_another(&copied.rounds) {
            copied.from.pre_copy_round()?;
            let bytes = copied.from.forward(&mut copied.to, IsLast::No)?;
            copied.rounds.push(bytes);
        }
        Ok(copied)
    }

    /// Bytes that were copied.
    pub(super) fn bytes(&self) -> u64 {
        self.rounds.iter().sum()
    }

    /// Has the source dump the rest, and the target restore it. If the container is busy, all is left in
    /// `again` for another attempt.
    pub(super) fn finish(
        mut self,
        again: &mut Option<Self>,
    ) -> Result<(Peer<'a>, Peer<'a>, u64), Error> {
        let dumped = match self.from.pre_copy_last() {
            Err(error) if error.kind == Kind::Unavailable => {
                *again = Some(self);
                return Err(error);
            }
            dumped => dumped?,
        };
        is_it(&self.record, &dumped).map_err(|reason| refused(self.source, reason))?;
        let bytes = self.from.forward(&mut self.to, IsLast::Yes)?;
        Ok((self.from, self.to, bytes))
    }
}

/// Whether another round would have the container stand still for much less time, after rounds of so
/// many bytes.
fn is_worth_another(rounds: &[u64]) -> bool {
    match *rounds {
        [] => true,
        [.., last] if last <= FEW_BYTES || rounds.len() >= ROUNDS_MAX => false,
        // The second may be as long as the first, if all of its memory changes.
        [.., before, last] => last < before / 4 * 3,
        [_] => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_end_when_they_gain_nothing() {
        const MIB: u64 = 1 << 20;
        for goes_on in [&[][..], &[256 * MIB], &[256 * MIB, 30 * MIB]] {
            assert!(is_worth_another(goes_on), "{goes_on:?}");
        }
        for ends in [
            &[MIB][..],
            &[256 * MIB, 3 * MIB],
            &[256 * MIB, 250 * MIB],
            &[64 * MIB, 30 * MIB, 29 * MIB],
            &[
                900 * MIB,
                600 * MIB,
                400 * MIB,
                250 * MIB,
                150 * MIB,
                90 * MIB,
            ],
        ] {
            assert!(!is_worth_another(ends), "{ends:?}");
        }
    }
}
