//! Records as text.

use super::Record;
use std::fmt::Write;

const NS_PER_S: u64 = 1_000_000_000;
const NS_PER_US: u64 = 1_000;

/// Formats a record as the kernel's console does: `[    1.234567] text`, with the time before every
/// line of a multi-line record (`record_print_text` of kernel/printk/printk.c), without a newline
/// at the end.
///
/// Control characters, with which a hostile kernel could manipulate the reader's terminal, are
/// written like `\x1b`, as in /dev/kmsg; tabs are kept.
pub fn format_record(record: &Record) -> String {
    let seconds = record.timestamp_ns / NS_PER_S;
    let microseconds = record.timestamp_ns % NS_PER_S / NS_PER_US;
    let time = format!("[{seconds:5}.{microseconds:06}] ");
    let mut formatted = String::with_capacity(time.len() + record.text.len());
    for (index, line) in record.text.split('\n').enumerate() {
        if index > 0 {
            formatted.push('\n');
        }
        formatted.push_str(&time);
        push_printable(&mut formatted, line);
    }
    formatted
}

fn push_printable(formatted: &mut String, line: &str) {
    for character in line.chars() {
        if character.is_control() && character != '\t' {
            // Writing to a string does not fail.
            let _ = write!(formatted, "\\x{:02x}", u32::from(character));
        } else {
            formatted.push(character);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::Caller;

    fn formatted(timestamp_ns: u64, text: &str) -> String {
        let caller = Caller::Thread(1);
        format_record(&Record {
            seq: 0,
            timestamp_ns,
            level: 6,
            facility: 0,
            caller,
            text: text.to_owned(),
        })
    }

    #[test]
    fn time_is_as_in_dmesg() {
        assert_eq!(formatted(0, "first"), "[    0.000000] first");
        assert_eq!(formatted(12_345_678_901_234, "x"), "[12345.678901] x");
        assert_eq!(formatted(u64::MAX, ""), "[18446744073.709551] ");
    }

    #[test]
    fn every_line_has_the_time() {
        assert_eq!(
            formatted(1_000, "a\nb\n"),
            "[    0.000001] a\n[    0.000001] b\n[    0.000001] "
        );
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(
            formatted(0, "\x1b[2J\ta\u{9b}é"),
            "[    0.000000] \\x1b[2J\ta\\x9bé"
        );
    }
}
