//! Undoing an upgrade that failed, or whose command was killed.

use insula_base::error::{Error, Kind};
use insula_node as node;

use super::{Upgrade, UpgradeEvent};
use crate::container;

/// What an upgrade that was undone leaves.
const UNDONE: &str = "the node and its containers are as before";
/// The same if the new node has ended with some of them.
const LOST: &str = "the node is as before, without the containers that have ended with the new one";

impl Upgrade<'_> {
    /// Undoes, or completes, an earlier upgrade of the node whose command was killed: the node beside
    /// goes, whichever it is.
    pub(super) fn undo_earlier(&self) -> Result<(), Error> {
        match node::find(self.driver, &self.beside) {
            Err(error) if error.kind == Kind::NoNode => return Ok(()),
            found => drop(found?),
        }
        self.tell(&UpgradeEvent::Earlier { node: &self.beside });
        self.undo().map(drop)
    }

    /// Moves all containers to the node that stays, and removes the one beside.
    /// Returns what that leaves.
    pub(super) fn undo(&self) -> Result<&'static str, Error> {
        self.interrupt.forget();
        let (stays, goes) = (self.request.node, &self.beside);
        let handle = match node::find(self.driver, goes) {
            // It was not started.
            Err(error) if error.kind == Kind::NoNode => return Ok(UNDONE),
            found => found?,
        };
        let mut left = UNDONE;
        if handle.is_running() {
            // Settles moves that were interrupted, too.
            self.move_all(goes, stays).map_err(|error| {
                let what = format!("the containers cannot be moved back to '{stays}'");
                let hint = format!(
                    "`insula ps` shows where they are; `insula move` moves them, \
                                    `insula rm --force {goes}` removes the node beside"
                );
                error
                    .context(what)
                    .leaving("each goes on where it is")
                    .hint(hint)
            })?;
        } else if self.tell_lost()? {
            left = LOST;
        }
        self.remove(goes)?;
        Ok(left)
    }

    /// Tells which containers have ended with the node beside, and whether any has.
    fn tell_lost(&self) -> Result<bool, Error> {
        let mut records = container::all(self.driver, self.root)?;
        records.retain(|record| record.node == self.beside);
        for record in &records {
            self.tell(&UpgradeEvent::Lost {
                container: &record.name,
                node: &self.beside,
            });
        }
        Ok(!records.is_empty())
    }
}
