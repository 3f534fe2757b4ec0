//! `insula events`.

use std::thread::sleep;
use std::time::{Duration, SystemTime};

use insula_node::events::{NodeEvent, Reader};
use serde_json::json;

use super::cli::Events;
use super::{Context, Failure, output};

/// Interval at which the events are read.
const INTERVAL: Duration = Duration::from_millis(50);

pub(super) fn events(context: &Context, options: &Events) -> Result<(), Failure> {
    let since = match options.since {
        Some(since) => since.0,
        None if options.no_stream => SystemTime::UNIX_EPOCH,
        None => in_whole_ms(SystemTime::now()),
    };
    let mut reader = Reader::new(&context.root);
    loop {
        // Before reading: what has happened until then is read.
        let is_last = options.no_stream || is_over(options, SystemTime::now());
        let events = reader.read_new()?.into_iter();
        for event in events.filter(|event| is_shown(options, since, event)) {
            print(options, &event)?;
        }
        if is_last {
            return Ok(());
        }
        sleep(INTERVAL);
    }
}

/// A time as events have it, cut off: what happens within the millisecond is not before it.
fn in_whole_ms(time: SystemTime) -> SystemTime {
    let since_epoch = time.duration_since(SystemTime::UNIX_EPOCH);
    let below = since_epoch.map_or(0, |time| time.subsec_nanos() % 1_000_000);
    time - Duration::from_nanos(below.into())
}

fn is_over(options: &Events, time: SystemTime) -> bool {
    options.until.is_some_and(|until| time > until.0)
}

fn is_shown(options: &Events, since: SystemTime, event: &NodeEvent) -> bool {
    let is_named = |name: &str| options.names.iter().any(|one| one.as_str() == name);
    let is_wanted = options.names.is_empty() || is_named(&event.name);
    is_wanted && event.time >= since && !is_over(options, event.time)
}

fn print(options: &Events, event: &NodeEvent) -> Result<(), Failure> {
    match options.json {
        true => output::line(&json!(event).to_string()),
        false => output::line(&text(event)),
    }
}

/// As podman shows events: time, status, name, and more in brackets.
fn text(event: &NodeEvent) -> String {
    let time = humantime::format_rfc3339_millis(event.time);
    let line = format!("{time} {} {}", event.status.name(), event.name);
    let more = event.attributes.iter().filter(|(key, _)| *key != "repair");
    let more: Vec<_> = more.map(|(key, value)| format!("{key}={value}")).collect();
    match more.is_empty() {
        true => line,
        false => format!("{line} ({})", more.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use insula_node::events::Status;

    use super::*;
    use crate::cli::{Cli, Command};

    fn options(words: &str) -> Events {
        let words = ["insula", "events"]
            .into_iter()
            .chain(words.split_whitespace());
        match Cli::parse_from(words).command {
            Command::Events(options) => options,
            other => panic!("{other:?}"),
        }
    }

    fn event(time_s: u64) -> NodeEvent {
        NodeEvent {
            time: SystemTime::UNIX_EPOCH + Duration::from_secs(time_s),
            ..NodeEvent::now("web", Status::Died).with("reason", "crashed")
        }
    }

    #[test]
    fn an_event_is_a_line() {
        let line = "1970-01-01T00:00:05.000Z died web (reason=crashed)";
        assert_eq!(text(&event(5).with("repair", "{}")), line);
        let start = NodeEvent {
            time: SystemTime::UNIX_EPOCH,
            ..NodeEvent::now("web", Status::Start)
        };
        assert_eq!(text(&start), "1970-01-01T00:00:00.000Z start web");
    }

    #[test]
    fn an_event_is_not_before_the_moment_at_which_it_happens() {
        let ns = |ns| SystemTime::UNIX_EPOCH + Duration::from_nanos(ns);
        let now = ns(5_001_999_999);
        assert_eq!(in_whole_ms(now), ns(5_001_000_000));
        let happened = NodeEvent {
            time: now,
            ..NodeEvent::now("web", Status::Start)
        };
        let line = json!(happened).to_string();
        let read: NodeEvent = serde_json::from_str(&line).unwrap();
        assert!(is_shown(&options(""), in_whole_ms(now), &read));
    }

    #[test]
    fn events_are_chosen_by_name_and_time() {
        let shown = |words: &str, time_s| {
            let options = options(words);
            let since = options
                .since
                .map_or(SystemTime::UNIX_EPOCH, |since| since.0);
            is_shown(&options, since, &event(time_s))
        };
        assert!(shown("", 5) && shown("web other", 5) && !shown("other", 5));
        assert!(shown("--since 1970-01-01T00:00:05Z", 5));
        assert!(!shown("--since 1970-01-01T00:00:05Z", 4));
        assert!(shown("--until 1970-01-01T00:00:05Z", 5));
        assert!(!shown("--until 1970-01-01T00:00:05Z", 6));
    }
}
