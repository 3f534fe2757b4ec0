//! The report: Markdown with charts beside it.

use std::fmt::Write;
use std::path::Path;
use std::{fs, io};

use crate::benchmark::{Benchmark, Peer, Row, Unit};
use crate::measured::Measured;
use crate::plot::{self, Bar, Line, number};
use crate::results::{Entry, Ratio, entries};

/// Preconditions of every figure.
const INTRODUCTION: &str = "\
# Measured

Written by `make bench`; each part says when, where and on which commit. Medians, with the tenth
and the ninetieth percentile of all boots together; *n* is how often. Peers are measured in the
same boots, unless they are a paper's. The command is that of the Debian package.

*Ratio* is that of the medians, in brackets from the one's tenth percentile by the other's
ninetieth to the one's ninetieth by the other's tenth. Where these are on both sides of 1,
the figures show **no difference**. Where a median is 0, or has fewer than three values, there is
no ratio.

**Emulated** results come from QEMU's translation of every instruction (TCG), not from hardware.
Ratios of like work hold roughly there. Ratios of copying against signalling or faulting do not
carry over: copying looks 5 to 36 times slower than on hardware, signalling 1.2 to 1.6 times.
";

/// Writes `report.md`, its charts and `results.json` into `folder`.
///
/// # Errors
/// When a file cannot be written.
pub fn write(folder: &Path, all: &[(&Benchmark, Measured)]) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let mut text = INTRODUCTION.to_owned();
    let mut results = Vec::new();
    for (benchmark, measured) in all {
        let entries = entries(benchmark, measured);
        text.push_str(&section(benchmark, measured, &entries));
        if let Some(picture) = picture(benchmark, measured, &entries) {
            let name = format!("{}.svg", benchmark.name);
            fs::write(folder.join(&name), picture)?;
            let _ = writeln!(text, "\n![{}]({name})", benchmark.title);
        }
        results.extend(entries);
    }
    fs::write(folder.join("report.md"), text)?;
    let mut results = serde_json::to_string_pretty(&results)?;
    results.push('\n');
    fs::write(folder.join("results.json"), results)
}

fn section(benchmark: &Benchmark, measured: &Measured, entries: &[Entry]) -> String {
    let mut text = format!("\n## {}\n\n{}\n\n", benchmark.title, benchmark.how);
    text.push_str(&state(measured));
    text.push_str(
        "\n| what | n | median | p10 | p90 | unit | peer | peer's median | ratio |\n\
         |---|--:|--:|--:|--:|---|---|--:|--:|\n",
    );
    for (row, entry) in rows(benchmark, entries) {
        let number_or_dash = |value: Option<f64>| value.map_or("-".to_owned(), number);
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            cell(entry.what),
            entry.n,
            number(entry.median),
            number(entry.p10),
            number(entry.p90),
            entry.unit,
            cell(&peer(benchmark, row)),
            number_or_dash(entry.peer_median),
            ratio(row, entry),
        );
    }
    for (row, entry) in rows(benchmark, entries) {
        if let Some(goal) = row.goal {
            let (what, median, status) =
                (entry.what, number(entry.median), goal_status(entry, goal));
            let _ = writeln!(
                text,
                "\nGoal: {what} at most {goal}: **{status}** ({median})."
            );
        }
    }
    text
}

/// Text of a cell: a bar in it is none of the table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

/// Text of the last column.
fn ratio(row: &Row, entry: &Entry) -> String {
    // A share is a ratio itself; a paper's share has other proportions.
    let Some(ratio) = entry.ratio.filter(|_| !is_share_of_a_paper(row)) else {
        return "-".to_owned();
    };
    if !ratio.is_difference() {
        return "no difference".to_owned();
    }
    let Ratio {
        of_medians,
        low,
        high,
    } = ratio;
    let [of_medians, low, high] = [of_medians, low, high].map(number);
    format!("{of_medians} ({low} - {high})")
}

fn is_share_of_a_paper(row: &Row) -> bool {
    row.unit == Unit::Share && matches!(row.peer, Peer::Mint(_))
}

/// Whether a goal is met, within the spread.
fn goal_status(entry: &Entry, goal: f64) -> &'static str {
    match (entry.median <= goal, entry.p10 <= goal, entry.p90 <= goal) {
        (true, _, true) => "met",
        (true, _, false) => "met by the median, not throughout",
        (false, true, _) => "not met by the median, at times",
        (false, false, _) => "not met",
    }
}

/// Rows that were measured.
fn rows<'a>(
    benchmark: &'a Benchmark,
    entries: &'a [Entry],
) -> impl Iterator<Item = (&'a Row, &'a Entry)> {
    entries.iter().filter_map(|entry| {
        let row = benchmark.rows.iter().find(|row| row.id == entry.id)?;
        Some((row, entry))
    })
}

fn peer(benchmark: &Benchmark, row: &Row) -> String {
    match row.peer {
        Peer::None => "-".to_owned(),
        Peer::Mint(_) => "Mint, i7-4770".to_owned(),
        Peer::Row(id) => {
            let peer = benchmark.rows.iter().find(|other| other.id == id);
            peer.map_or(id, |peer| peer.what).to_owned()
        }
    }
}

/// Circumstances, and errors.
fn state(measured: &Measured) -> String {
    let of = &measured.circumstances;
    let label = if of.emulated {
        "**Emulated.**"
    } else {
        "Not emulated (KVM)."
    };
    let mut text = format!(
        "{label} {}, commit {}; `make bench PART={}`, boots: {}. Machine: {}; {}; on {} (load {} \
         at the start; others kept {:.2} cores busy meanwhile).\n",
        of.date,
        of.commit,
        measured.benchmark,
        measured.boots.len(),
        of.machine,
        of.emulator,
        of.processor,
        of.load,
        of.others
    );
    if measured.emulator_faults > 0 {
        let _ = writeln!(
            text,
            "Runs repeated after a fault of the emulator: {}.",
            measured.emulator_faults
        );
    }
    for error in &measured.errors {
        let _ = writeln!(text, "\nNot all was measured: {}", error.replace('\n', " "));
    }
    text
}

fn picture(benchmark: &Benchmark, measured: &Measured, entries: &[Entry]) -> Option<String> {
    let label = if measured.circumstances.emulated {
        " (emulated)"
    } else {
        ""
    };
    let title = format!("{}{label}", benchmark.title);
    if benchmark.series.is_empty() {
        drawn_rows(benchmark, entries, &title)
    } else {
        drawn_series(benchmark, measured, &title)
    }
}

/// The first boot's values, second by second.
fn drawn_series(benchmark: &Benchmark, measured: &Measured, title: &str) -> Option<String> {
    let boot = measured.boots.first()?;
    let lines = benchmark.series.iter().filter_map(|series| {
        boot.get(series.id).map(|values| Line {
            label: series.what,
            values,
        })
    });
    Some(plot::lines(title, "s", &lines.collect::<Vec<_>>()))
}

fn drawn_rows(benchmark: &Benchmark, entries: &[Entry], title: &str) -> Option<String> {
    let drawn: Vec<_> = rows(benchmark, entries)
        .filter(|(row, _)| row.drawn)
        .collect();
    let unit = drawn.first()?.1.unit;
    let bars: Vec<_> = drawn
        .iter()
        .map(|(_, entry)| Bar {
            label: entry.what.to_owned(),
            median: entry.median,
            p10: entry.p10,
            p90: entry.p90,
        })
        .collect();
    Some(plot::bars(title, unit, &bars))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benchmark;
    use crate::measured::fake;

    fn written(measured: Measured) -> (String, String, Vec<serde_json::Value>) {
        let folder = tempfile::tempdir().unwrap();
        let benchmark = benchmark::find(&measured.benchmark).unwrap();
        write(folder.path(), &[(benchmark, measured)]).unwrap();
        let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        let results = serde_json::from_str(&read("results.json")).unwrap();
        (read("report.md"), read("mint-start.svg"), results)
    }

    #[test]
    fn goals_are_judged_and_emulation_is_stated() {
        let share = "mint-start.share.pool-of-cold";
        let samples: [(&str, &[f64]); 2] = [("mint-start.cold", &[100.0]), (share, &[0.2])];
        let (report, picture, results) = written(fake::measured("mint-start", &samples));
        assert!(
            report.contains("at most 0.15: **not met** (0.200)"),
            "{report}"
        );
        assert!(report.contains("**Emulated.** 2026-01-02"), "{report}");
        assert!(picture.contains("(emulated)"));
        assert_eq!(results.len(), 2);
        assert_eq!(results[0]["peer_median"], 175.12);
        assert_eq!(results[0]["emulated"], true);
    }

    #[test]
    fn overlapping_spreads_are_no_difference() {
        let entry = |peer: &[f64]| {
            let samples: [(&str, &[f64]); 2] =
                [("cycle.base", peer), ("cycle.pool", &[0.8, 1.0, 1.2])];
            let folder = tempfile::tempdir().unwrap();
            let measured = fake::measured("cycle", &samples);
            let benchmark = benchmark::find("cycle").unwrap();
            write(folder.path(), &[(benchmark, measured)]).unwrap();
            let report = fs::read_to_string(folder.path().join("report.md")).unwrap();
            let row = report.lines().find(|line| line.contains("to the pool"));
            row.unwrap().rsplit('|').nth(1).unwrap().trim().to_owned()
        };
        assert_eq!(entry(&[1.0, 1.1, 1.2]), "no difference");
        assert_eq!(entry(&[2.0, 2.0, 2.0]), "0.500 (0.420 - 0.580)");
        assert_eq!(entry(&[0.0, 0.0, 0.0]), "-");
    }

    #[test]
    fn goals_within_the_spread_are_not_simply_met() {
        let share = "mint-start.share.pool-of-cold";
        let judged = |values: &[f64]| {
            let (report, ..) = written(fake::measured(
                "mint-start",
                &[("mint-start.cold", &[1.0]), (share, values)],
            ));
            let line = report.lines().find(|line| line.starts_with("Goal: "));
            line.unwrap().to_owned()
        };
        assert!(judged(&[0.1, 0.11, 0.12]).contains("**met**"));
        assert!(judged(&[0.1, 0.11, 0.3]).contains("**met by the median, not throughout**"));
        assert!(judged(&[0.1, 0.2, 0.3]).contains("**not met by the median, at times**"));
        assert!(judged(&[0.2, 0.2, 0.3]).contains("**not met**"));
    }

    #[test]
    fn errors_are_listed() {
        let mut measured = fake::measured("mint-start", &[("mint-start.cold", &[1.0])]);
        (measured.emulator_faults, measured.errors) = (2, vec!["a node\ndied".to_owned()]);
        let (report, ..) = written(measured);
        assert!(report.contains("emulator: 2."), "{report}");
        assert!(
            report.contains("Not all was measured: a node died"),
            "{report}"
        );
    }
}
