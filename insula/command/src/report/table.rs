//! Tables of text.

use std::fmt;

/// Alignment of a column's cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// Rows under headings; columns are as wide as their widest cell, two spaces apart.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table with these headings.
    #[must_use]
    pub(crate) fn new(columns: &[(&str, Align)]) -> Self {
        let owned = |&(heading, align): &(&str, Align)| (heading.to_owned(), align);
        Self {
            columns: columns.iter().map(owned).collect(),
            rows: Vec::new(),
        }
    }

    /// Appends a row; surplus cells are dropped, missing ones are empty.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let mut cells: Vec<_> = cells.into_iter().take(self.columns.len()).collect();
        cells.resize(self.columns.len(), String::new());
        self.rows.push(cells);
    }

    fn width(&self, column: usize) -> usize {
        let heading = self.columns[column].0.chars().count();
        let cells = self.rows.iter().map(|row| row[column].chars().count());
        cells.fold(heading, usize::max)
    }

    fn line<'a>(&self, cells: impl Iterator<Item = &'a str>) -> String {
        let padded: Vec<_> = cells
            .zip(&self.columns)
            .enumerate()
            .map(|(column, (cell, (_, align)))| match align {
                Align::Left => format!("{cell:<width$}", width = self.width(column)),
                Align::Right => format!("{cell:>width$}", width = self.width(column)),
            })
            .collect();
        padded.join("  ").trim_end().to_owned()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{}",
            self.line(self.columns.iter().map(|(heading, _)| heading.as_str()))
        )?;
        for row in &self.rows {
            writeln!(f, "{}", self.line(row.iter().map(String::as_str)))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_needed() {
        let mut table = Table::new(&[("NAME", Align::Left), ("SIZE", Align::Right)]);
        table.row(["a".into(), "1".into()]);
        table.row(["longer".into(), "12345".into(), "dropped".into()]);
        table.row(["no size".into()]);
        let text = table.to_string();
        assert_eq!(
            text,
            "NAME      SIZE\na            1\nlonger   12345\nno size\n"
        );
    }
}
