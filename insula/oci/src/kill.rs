//! `kill`: a signal for the container's first process.
//!
//! Each but SIGKILL is the program's business, also those that would end or stop what stands for the container. SIGKILL ends that,
//! and so all of the container's.

use std::process::ExitCode;

use insula_base::error::Error;
use insula_driver::Driver;
use insula_exec::agent::Location;
use insula_exec::container::signal_at;
use signal_hook::consts::{SIGKILL, SIGTERM};
use signal_hook::low_level::signal_name;

use super::arguments::Arguments;
use super::runtime::Runtime;
use super::state::Record;

/// The first real-time signal, as the C library counts them, and the last.
const REAL_TIME: (i32, i32) = (34, 64);

/// Sends a signal to a container. Of one whose program does not run yet, and of a node that does not answer, it is what stands for
/// it that gets the signal.
///
/// # Errors
/// There is no such signal, or the ordinary runtime cannot be executed.
pub(super) fn kill(
    arguments: &Arguments,
    runtime: &Runtime,
    record: &Record,
) -> Result<ExitCode, Error> {
    let word = arguments
        .operands()
        .find(|word| word.to_str() != Some(&record.id));
    let word = word.map(|word| word.to_string_lossy());
    let signal = match &word {
        Some(word) => number(word).ok_or_else(|| no_signal(word))?,
        None => SIGTERM,
    };
    match signal != SIGKILL && send(record, signal).is_ok() {
        true => Ok(ExitCode::SUCCESS),
        false => Err(runtime.exec(&arguments.words())),
    }
}

fn no_signal(word: &str) -> Error {
    Error::new(format!("there is no signal '{word}'"))
        .untouched()
        .hint("give its name or its number")
}

fn send(record: &Record, signal: i32) -> Result<(), Error> {
    let at = Location::Node(record.node.clone());
    signal_at(&Driver::open()?, &at, &record.name, signal)
}

/// The number of a signal, which is given by that or by its name, with or without `SIG`.
fn number(text: &str) -> Option<i32> {
    if let Ok(number) = text.parse() {
        return Some(number);
    }
    let text = text.to_uppercase();
    let name = text.strip_prefix("SIG").unwrap_or(&text);
    let (first, last) = REAL_TIME;
    let is_it = |number: &i32| {
        let known = signal_name(*number).and_then(|known| known.strip_prefix("SIG"));
        known == Some(name)
    };
    let after = |text: &str| match text {
        "" => Some(0),
        text => text.strip_prefix('+')?.parse().ok(),
    };
    match name.strip_prefix("RTMIN") {
        Some(rest) => after(rest)
            .and_then(|more: i32| first.checked_add(more))
            .filter(|number| (first..=last).contains(number)),
        None => (1..first).find(is_it),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_numbers_and_names() {
        for (text, expected) in [
            ("15", Some(15)),
            ("TERM", Some(15)),
            ("SIGWINCH", Some(28)),
            ("sigusr1", Some(10)),
            ("SIGRTMIN", Some(34)),
            ("SIGRTMIN+3", Some(37)),
            ("RTMIN+31", None),
            ("RTMIN+2147483647", None),
            ("NOSUCH", None),
        ] {
            assert_eq!(number(text), expected, "{text}");
        }
    }
}
