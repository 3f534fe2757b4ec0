//! `insula dump | backtrace | debug`.

use insula::postmortem::debug::{self, Listener, NodeTarget, Wire};
use insula::postmortem::{
    DumpRequest, KeptDump, Limits, Store, Subject, Target, backtrace as ask_for_backtrace,
    dump as write_dump,
};
use insula::report::{Align, Table, duration};
use insula::units::Size;

use super::cli::{Backtrace, Debug, Dump, DumpCommand, DumpNode};
use super::node::find;
use super::{Context, Failure, output};

/// Where gdb finds a node, by its name.
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
        // The definition asks for one of them.
        (None, None) => Ok(()),
    }
}

fn dump_node(context: &Context, options: DumpNode) -> Result<(), Failure> {
    let handle = find(&context.driver()?, &options.name)?;
    let target = match options.output {
        Some(path) => Target::File(path),
        None => {
            let set = Limits::from_environment()?;
            Target::Kept(Limits {
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
        .doubts
        .iter()
        .for_each(|doubt| output::note(&doubt.to_string()));
    for path in &dumped.removed {
        output::note(&format!("{} was removed, as the oldest", path.display()));
    }
    output::line(&dumped.path.display().to_string())
}

fn dumps_table(dumps: &[KeptDump], now_s: u64) -> Table {
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

pub(super) fn backtrace(context: &Context, options: &Backtrace) -> Result<(), Failure> {
    let handle = find(&context.driver()?, &options.name)?;
    let found = ask_for_backtrace(&handle)?;
    for record in &found.records {
        output::line(&record.text())?;
    }
    for number in &found.cores.silent {
        output::note(&format!("core {number} of the node does not answer an NMI"));
    }
    Ok(())
}

pub(super) fn debug(context: &Context, options: &Debug) -> Result<(), Failure> {
    let handle = find(&context.driver()?, &options.name)?;
    let subject = Subject::open(&handle)?;
    let mut target = NodeTarget::new(&subject)?;
    tell_what_is_missing(&subject, &target);
    if options.stdio {
        return Ok(debug::answer(&mut target, Wire::stdio())?);
    }
    let listener = match options.port {
        Some(port) => Listener::tcp(port)?,
        None => Listener::unix(&context.root.path(&format!("{SOCKETS}/{}", options.name)))?,
    };
    output::line(&format!("gdb -ex 'target remote {listener}'"))?;
    loop {
        if let Err(error) = debug::answer(&mut target, listener.accept()?) {
            output::note(&error.to_string());
        }
    }
}

fn tell_what_is_missing(subject: &Subject, target: &NodeTarget<'_>) {
    if subject.is_running() {
        output::note("the node runs: its memory changes while gdb looks at it");
    }
    let unknown = target.cores().filter(|(_, known)| !known).count();
    if unknown > 0 {
        output::note(&format!(
            "the registers of {unknown} of {} cores are not known, gdb sees them as 0",
            target.cores().count()
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dumps_as_a_table() {
        let dump = |name: &str, written_unix_s, disk_bytes| KeptDump {
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
