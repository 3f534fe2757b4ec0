//! `insula dump | postmortem | backtrace | debug`.

use std::time::{Duration, UNIX_EPOCH};

use insula_base::units::Size;
use insula_postmortem::debug::{self, GdbStream, Listener, NodeTarget};
use insula_postmortem::{
    DumpRequest, InspectedNode, Limits, Store, StoredDump, Target, backtrace as print_backtrace,
    dump as write_dump, kept_logs,
};

use super::cli::{Backtrace, Debug, Dump, DumpCommand, DumpNode, Postmortem};
use super::node::find;
use super::{Context, Failure, output};
use crate::report::{Align, Table, duration};

/// Folder of the sockets for gdb, each with its node's name.
const SOCKETS: &str = "/run/insula/debug";

pub(super) fn dump(context: &Context, options: Dump) -> Result<(), Failure> {
    let store = Store::new(&context.root);
    match (options.command, options.node) {
        (Some(DumpCommand::Ls { json }), _) => {
            let dumps = store.list()?;
            if json {
                output::json(&dumps)
            } else {
                output::print(&dumps_table(&dumps, unix_now_s()).to_string())
            }
        }
        (Some(DumpCommand::Rm { names }), _) => {
            for name in &names {
                store.remove(name)?;
                output::line(name)?;
            }
            Ok(())
        }
        (None, Some(node)) => dump_node(context, node),
        // The definition requires one of them.
        (None, None) => Ok(()),
    }
}

fn dump_node(context: &Context, options: DumpNode) -> Result<(), Failure> {
    let handle = find(&context.driver()?, &options.name)?;
    let target = match options.output {
        Some(path) => Target::File(path),
        None => {
            let set = Limits::from_environment()?;
            Target::Store(Limits {
                count: options.max.unwrap_or(set.count),
                bytes: options.size_max.map_or(set.bytes, |Size(bytes)| bytes),
            })
        }
    };
    let request = DumpRequest {
        target,
        interrupt: options.nmi,
    };
    let dumped = write_dump(&handle, &context.root, &request)?;
    if options.json {
        return output::json(&dumped);
    }
    dumped
        .warnings
        .iter()
        .for_each(|warning| output::note(&warning.to_string()));
    for path in &dumped.removed {
        output::note(&format!("{} was removed, as the oldest", path.display()));
    }
    output::line(&dumped.path.display().to_string())
}

fn dumps_table(dumps: &[StoredDump], now_s: u64) -> Table {
    let mut table = Table::new(&[
        ("DUMP", Align::Left),
        ("AGE", Align::Right),
        ("MEMORY", Align::Right),
        ("ON DISK", Align::Right),
    ]);
    for dump in dumps {
        let age_s = now_s.saturating_sub(dump.written_unix_s);
        table.row([
            dump.name.clone(),
            duration(age_s.saturating_mul(1_000_000_000)),
            Size(dump.size_bytes).to_string(),
            Size(dump.disk_bytes).to_string(),
        ]);
    }
    table
}

fn unix_now_s() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs())
}

/// Prints logs of earlier kernels, each after its file and time.
pub(super) fn kept(context: &Context, options: &Postmortem) -> Result<(), Failure> {
    let logs = kept_logs(&context.root)?;
    if options.json {
        return output::json(&logs);
    }
    if logs.is_empty() {
        output::note(
            "nothing is there: pstore is not mounted, or has no driver, or nothing was kept",
        );
    }
    for log in logs {
        let written = UNIX_EPOCH + Duration::from_secs(log.written_unix_s);
        let written = humantime::format_rfc3339_seconds(written);
        output::line(&format!("{}, written {written}:", log.path.display()))?;
        output::line(&printable(&log.text))?;
    }
    Ok(())
}

/// A log without what could manipulate a terminal.
fn printable(text: &str) -> String {
    let keep = |character: &char| !character.is_control() || "\n\t".contains(*character);
    text.chars().filter(keep).collect()
}

pub(super) fn backtrace(context: &Context, options: &Backtrace) -> Result<(), Failure> {
    let handle = find(&context.driver()?, &options.name)?;
    let found = print_backtrace(&handle)?;
    for record in &found.records {
        output::line(&record.text())?;
    }
    for number in &found.cores.silent {
        output::note(&format!(
            "core {number} of the node did not respond to an NMI"
        ));
    }
    Ok(())
}

pub(super) fn debug(context: &Context, options: &Debug) -> Result<(), Failure> {
    let handle = find(&context.driver()?, &options.name)?;
    let node = InspectedNode::open(&handle)?;
    let mut target = NodeTarget::new(&node)?;
    note_missing(&node, &target);
    if options.stdio {
        return Ok(debug::serve(&mut target, GdbStream::stdio())?);
    }
    let listener = match options.port {
        Some(port) => Listener::tcp(port)?,
        None => Listener::unix(&context.root.path(&format!("{SOCKETS}/{}", options.name)))?,
    };
    output::line(&format!("gdb -ex 'target remote {listener}'"))?;
    loop {
        if let Err(error) = debug::serve(&mut target, listener.accept()?) {
            output::note(&error.to_string());
        }
    }
}

fn note_missing(node: &InspectedNode, target: &NodeTarget<'_>) {
    if node.is_running() {
        output::note("the node is running: its memory changes while gdb reads it");
    }
    let unknown = target.cores().filter(|(_, known)| !known).count();
    if unknown > 0 {
        output::note(&format!(
            "the registers of {unknown} of {} cores are unknown, gdb sees them as 0",
            target.cores().count()
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dumps_as_a_table() {
        let dump = |name: &str, written_unix_s, disk_bytes| StoredDump {
            name: name.to_owned(),
            path: name.into(),
            written_unix_s,
            size_bytes: (512 << 20) + 0x9000,
            disk_bytes,
        };
        let dumps = [
            dump("web-20261120T093000Z.vmcore", 1_000, 61 << 20),
            dump("calm-crete-20261120T101500Z.vmcore", 3_700, 300 << 10),
        ];
        insta::assert_snapshot!(dumps_table(&dumps, 4_000));
    }
}
