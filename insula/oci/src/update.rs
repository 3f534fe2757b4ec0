//! `update`: other limits for a container that runs. Those of memory and processor time are its node's size, or its share of
//! the node of another one.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::ExitCode;

use insula_agent::pod::Share;
use insula_base::error::Error;
use insula_base::root::Root;
use insula_base::units::Change;
use insula_driver::Driver;
use insula_exec::agent::Location;
use insula_exec::container::limit_at;
use insula_node::{self as node, UpdateRequest};
use serde_json::{Value, json};

use super::arguments::Arguments;
use super::config::Resources;
use super::node::NodeSize;
use super::pod::share;
use super::runtime::Runtime;
use super::state::Record;
use super::{exit_code, pause};

/// The option that names a file of limits, as in a configuration; `-` is standard input.
const RESOURCES: [&str; 2] = ["--resources", "-r"];
/// Options of one limit each, and where that is in a configuration.
const OPTIONS: [(&str, &str, &str); 4] = [
    ("--memory", "memory", "limit"),
    ("--cpu-quota", "cpu", "quota"),
    ("--cpu-period", "cpu", "period"),
    ("--pids-limit", "pids", "limit"),
];
/// Limits of what serves the node, in a configuration: the ordinary runtime's.
const OF_FILES: &str = "blockIO";

/// Changes a container's limits. Others than those of memory, processor time, processes and block I/O it does not have.
///
/// # Errors
/// Why it is refused, and what was changed.
pub(super) fn update(
    arguments: &Arguments,
    runtime: &Runtime,
    record: &Record,
) -> Result<ExitCode, Error> {
    pause::check(record)?;
    let value = described(arguments)?;
    let limits: Resources = serde_json::from_value(value.clone()).map_err(malformed)?;
    let driver = Driver::open()?;
    let size = match record.member {
        None => NodeSize::of(&limits),
        Some(_) => NodeSize::default(),
    };
    resize(&driver, record, size)?;
    let share = share(&limits, record.member.is_some());
    if share != Share::default() {
        let at = Location::Node(record.node.clone());
        limit_at(&driver, &at, &record.name, share).map_err(|error| match size {
            NodeSize {
                cpus: None,
                memory: None,
            } => error,
            _ => error.context("the node has its new size, and the container its old limits"),
        })?;
    }
    match value.get(OF_FILES) {
        Some(limits) => update_files(arguments, runtime, (record, limits)),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// The limits of the command line, as in a configuration.
fn described(arguments: &Arguments) -> Result<Value, Error> {
    if let Some(file) = arguments.value(&RESOURCES) {
        let bytes = read(file).map_err(|error| {
            let what = format!("{} cannot be read", Path::new(file).display());
            Error::new(what).because(error).untouched()
        })?;
        return serde_json::from_slice(&bytes).map_err(malformed);
    }
    let mut limits = json!({});
    for (option, group, key) in OPTIONS {
        let Some(text) = arguments.value(&[option]) else {
            continue;
        };
        let text = text.to_string_lossy();
        let number: i64 = text.parse().map_err(|error: std::num::ParseIntError| {
            let what = format!("'{text}' cannot be the value of {option}");
            Error::new(what).because(error).untouched()
        })?;
        limits[group][key] = json!(number);
    }
    Ok(limits)
}

fn read(file: &OsStr) -> io::Result<Vec<u8>> {
    if file != "-" {
        return fs::read(file);
    }
    let mut bytes = Vec::new();
    io::stdin().read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Gives the container's node this size.
fn resize(driver: &Driver, record: &Record, size: NodeSize) -> Result<(), Error> {
    if size == NodeSize::default() {
        return Ok(());
    }
    let request = UpdateRequest {
        cpus: size.cpus.map(Change::To),
        memory: size.memory.map(Change::To),
    };
    node::update(driver, &Root::default(), &record.node, request).map(drop)
}

/// Has the ordinary runtime change the limits of what serves the node.
fn update_files(
    arguments: &Arguments,
    runtime: &Runtime,
    (record, limits): (&Record, &Value),
) -> Result<ExitCode, Error> {
    let failed = |error: io::Error| {
        Error::new("the limits of block I/O were not changed; the others were").because(error)
    };
    let mut file = tempfile::NamedTempFile::new().map_err(failed)?;
    let text = json!({OF_FILES: limits}).to_string();
    file.write_all(text.as_bytes()).map_err(failed)?;
    let passed = arguments.asking("update", &record.id);
    let passed = passed.with_option(RESOURCES[0], file.path().as_os_str(), &[]);
    Ok(exit_code(runtime.run(&passed.words())?))
}

fn malformed(error: serde_json::Error) -> Error {
    Error::new("the limits cannot be understood")
        .because(error)
        .untouched()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    fn of(words: &[&str]) -> Result<Value, Error> {
        described(&Arguments::parse(words.iter().map(OsString::from)))
    }

    #[test]
    fn limits_are_those_of_options_or_of_a_file() {
        let words = ["update", "--memory=1048576", "--pids-limit", "-1", "web"];
        let expected = json!({"memory": {"limit": 1 << 20}, "pids": {"limit": -1}});
        assert_eq!(of(&words).unwrap(), expected);
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), r#"{"cpu": {"quota": 5}}"#).unwrap();
        let words = ["update", "-r", file.path().to_str().unwrap(), "web"];
        assert_eq!(of(&words).unwrap(), json!({"cpu": {"quota": 5}}));
        for words in [["--memory", "many"], ["-r", "/none"]] {
            assert!(
                of(&[&["update"], &words[..]].concat()).is_err(),
                "{words:?}"
            );
        }
    }
}
