//! `insula logs`.

use std::thread::sleep;
use std::time::{Duration, SystemTime};

use insula_base::error::Error;
use insula_driver::name::Name;
use insula_node::{Handle, LogRecord, NodeLog, detect_crash, no_log_yet, wait_for_last_lines};
use kimage::log::Placement;

use super::cli::Logs;
use super::node::observe;
use super::{Context, Failure, container, output};

/// Interval at which a followed log is read.
const INTERVAL: Duration = Duration::from_millis(50);
/// Reads of the log for each check of the node.
const ROUNDS_PER_CHECK: u32 = 10;

pub(super) fn logs(context: &Context, options: &Logs) -> Result<(), Failure> {
    if let Some(container) = container::find(context, &options.name)? {
        return container::logs(context, &container, options);
    }
    let mut handle = observe(&context.driver()?, &options.name)?;
    if options.needs_times() && !NodeLog::open(&handle)?.has_times() {
        return Err(without_times(&options.name).into());
    }
    if options.follow {
        follow(&mut handle, options)
    } else {
        show(&handle, options)
    }
}

fn show(handle: &Handle, options: &Logs) -> Result<(), Failure> {
    let log = NodeLog::open(handle)?;
    let placement = log
        .locate()
        .ok_or_else(|| no_log_yet(options.name.as_str()))?;
    if let Some(count) = options.tail {
        return log
            .last(placement, count)?
            .iter()
            .try_for_each(|one| print(one, options));
    }
    let mut reader = log.reader(placement);
    while let Some(record) = log.next(&mut reader)? {
        print(&record, options)?;
    }
    note_lost(reader.lost());
    Ok(())
}

/// Prints the log until the node stops. Its memory is mapped, so the log stays readable to the end
/// even if the node is removed meanwhile. But if the node is started again, that is gone.
fn follow(handle: &mut Handle, options: &Logs) -> Result<(), Failure> {
    let log = NodeLog::open(handle)?;
    let start = handle.info.starts;
    let has_ended = match follow_start(&log, handle, options) {
        Err(_) if handle.refresh().is_ok() && is_restarted(handle, start) => true,
        followed => followed?,
    };
    if has_ended {
        note_end(handle, start, &options.name);
    }
    Ok(())
}

/// Whether the node has been started once more since that start, or is about to be.
fn is_restarted(handle: &Handle, start: u64) -> bool {
    handle.info.starts != start || !(handle.is_running() || handle.is_stopped())
}

/// Prints it until the node has ended, which is told, or until what is asked for has been printed.
fn follow_start(log: &NodeLog, handle: &mut Handle, options: &Logs) -> Result<bool, Failure> {
    let start = handle.info.starts;
    let Some(placement) = wait_for_log(log, handle, start) else {
        return Ok(true);
    };
    let mut reader = log.reader(placement);
    if let Some(count) = options.tail {
        let last = log.last(placement, count)?;
        if let Some(first) = last.first() {
            reader.seek(first.record.seq);
        }
    }
    for round in 0_u32.. {
        while let Some(record) = log.next(&mut reader)? {
            print(&record, options)?;
        }
        if options
            .until
            .is_some_and(|until| SystemTime::now() > until.0)
        {
            note_lost(reader.lost());
            return Ok(false);
        }
        if round % ROUNDS_PER_CHECK == 0 && has_ended(handle, start) {
            break;
        }
        sleep(INTERVAL);
    }
    reader.set_stopped(true);
    while let Some(record) = log.next(&mut reader)? {
        print(&record, options)?;
    }
    note_lost(reader.lost());
    Ok(true)
}

/// Waits until the kernel has logged something; `None` if the node ends before.
fn wait_for_log(log: &NodeLog, handle: &mut Handle, start: u64) -> Option<Placement> {
    loop {
        if let Some(placement) = log.locate() {
            return Some(placement);
        }
        if has_ended(handle, start) {
            return None;
        }
        sleep(INTERVAL);
    }
}

/// Whether what ran since that start has stopped or been removed, or has crashed without a supervisor
/// that would stop it.
fn has_ended(handle: &mut Handle, start: u64) -> bool {
    if handle.refresh().is_err() || is_restarted(handle, start) {
        return true;
    }
    detect_crash(handle);
    let is_left = handle.is_crashed() && handle.is_running() && !handle.is_supervised();
    if is_left {
        wait_for_last_lines(handle);
    }
    is_left || handle.is_stopped()
}

/// Prints a record, if it is wanted.
fn print(record: &LogRecord, options: &Logs) -> Result<(), Failure> {
    if !is_wanted(record.time, options) {
        return Ok(());
    }
    match (options.json, record.time) {
        (true, _) => output::line(&serde_json::to_string(record)?),
        (false, Some(time)) if options.timestamps => {
            let time = humantime::format_rfc3339_micros(time);
            output::line(&format!("{time} {}", record.text()))
        }
        _ => output::line(&record.text()),
    }
}

/// Whether what was written then is asked for.
fn is_wanted(time: Option<SystemTime>, options: &Logs) -> bool {
    let is_early = options.since.is_some_and(|since| time < Some(since.0));
    let is_late = options.until.is_some_and(|until| time > Some(until.0));
    !is_early && !is_late
}

/// The error of a node that has not started yet, or is a copy.
fn without_times(name: &Name) -> Error {
    let what = format!("it is not known when the node '{name}' wrote its log");
    let hint = "its kernel has not started yet, or is the copy of another node's: leave out --since, --until \
                and --timestamps";
    Error::new(what).unchanged().hint(hint)
}

fn note_lost(lost: u64) {
    if lost > 0 {
        output::note(&format!(
            "{lost} records were overwritten before they could be read"
        ));
    }
}

fn note_end(handle: &Handle, start: u64, name: &Name) {
    if is_restarted(handle, start) {
        return output::note(&format!("the node '{name}' was restarted"));
    }
    let view = handle.view();
    let reason = view
        .reason
        .map_or_else(String::new, |reason| format!(" ({reason})"));
    output::note(&format!("the node '{name}' is {}{reason}", view.state));
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn options(words: &str) -> Logs {
        let command = ["insula", "logs", "web"].into_iter();
        match Cli::parse_from(command.chain(words.split_whitespace())).command {
            Command::Logs(options) => options,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn records_are_chosen_by_their_time() {
        let at = |second| Some(SystemTime::UNIX_EPOCH + Duration::from_secs(second));
        let chosen = |words: &str| {
            let options = options(words);
            let times = (0..5).filter(|&second| is_wanted(at(second), &options));
            times.collect::<Vec<_>>()
        };
        assert_eq!(chosen(""), [0, 1, 2, 3, 4]);
        assert_eq!(chosen("--since 1970-01-01T00:00:03Z"), [3, 4]);
        assert_eq!(chosen("--until 1970-01-01T00:00:01Z"), [0, 1]);
        let both = "--since 1970-01-01T00:00:01Z --until 1970-01-01T00:00:02Z";
        assert_eq!(chosen(both), [1, 2]);
        assert!(options("-t").needs_times() && !options("-f --json").needs_times());
    }
}
