//! Rows of a benchmark, many of them by placement.

use super::placement::{ONE_CORE, Texts};
use crate::benchmark::{Row, Unit};

/// Rows in one unit, to be filled one after the other.
pub(super) struct Table<const ROWS: usize> {
    rows: [Row; ROWS],
    count: usize,
    unit: Unit,
}

impl<const ROWS: usize> Table<ROWS> {
    pub(super) const fn new(unit: Unit) -> Self {
        Self {
            rows: [const { Row::time("", "", "") }; ROWS],
            count: 0,
            unit,
        }
    }

    /// Adds a row.
    pub(super) const fn with(mut self, row: Row) -> Self {
        self.rows[self.count] = row.unit(self.unit);
        self.count += 1;
        self
    }

    /// Adds a row, beside another one if there is an id.
    pub(super) const fn peer(
        self,
        id: &'static str,
        what: &'static str,
        beside: Option<&'static str>,
    ) -> Self {
        let row = Row::time(id, what, "");
        self.with(match beside {
            Some(peer) => row.beside(peer),
            None => row,
        })
    }

    /// Adds a row for each of some placements, by their numbers less one: all on one core beside another row, the others
    /// beside that.
    pub(super) const fn placements(
        mut self,
        which: &[usize],
        (ids, texts): (Texts, Texts),
        beside: &'static str,
    ) -> Self {
        let mut each = 0;
        while each < which.len() {
            let place = which[each];
            let peer = match place {
                ONE_CORE => beside,
                _ => ids[ONE_CORE],
            };
            self = self.peer(ids[place], texts[place], Some(peer));
            each += 1;
        }
        self
    }

    /// The rows so far are in the chart.
    pub(super) const fn drawn(mut self) -> Self {
        let mut each = 0;
        while each < self.count {
            self.rows[each].drawn = true;
            each += 1;
        }
        self
    }

    /// All; there are as many as there should be.
    pub(super) const fn rows(self) -> [Row; ROWS] {
        assert!(self.count == ROWS, "rows are missing");
        self.rows
    }
}
