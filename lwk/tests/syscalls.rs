//! The documentation's table of system calls is generated from the kernel's.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use insula_lwk::syscall::call::Kind;
use insula_lwk::syscall::table::TABLE;

/// Returns the name of an error in the table.
fn errno(number: u16) -> &'static str {
    match number {
        1 => "EPERM",
        4 => "EINTR",
        22 => "EINVAL",
        38 => "ENOSYS",
        _ => panic!("error {number} has no name here"),
    }
}

/// The first number of the calls that Linux does not have.
const OWN: u64 = 1024;

fn chapter() -> String {
    let (linux, own) = TABLE.split_at(TABLE.partition_point(|call| call.number < OWN));
    let count = |is: fn(&Kind) -> bool| linux.iter().filter(|call| is(&call.kind)).count();
    let mut text = format!(
        "# System calls on the lightweight kernel\n\n\
         Generated from the kernel's own table (`lwk/src/syscall/table.rs`): all {} calls of Linux 6.12 on x86-64. \
         {} are executed by the kernel itself (local), {} by the base (delegated); {} are refused, with the error \
         that the program gets and the reason. {} more are this kernel's own: [messages](servers.md) between \
         processes of a node, and [PCI functions](servers.md#drivers) that these drive.\n\n\
         | number | call | where | why |\n|---:|---|---|---|\n",
        linux.len(),
        count(|kind| *kind == Kind::Local),
        count(|kind| matches!(kind, Kind::Delegated | Kind::Masked(_))),
        count(|kind| matches!(kind, Kind::Refused { .. })),
        own.len(),
    );
    for call in TABLE {
        let (place, why) = match call.kind {
            Kind::Local => ("local".to_owned(), ""),
            Kind::Delegated => ("delegated".to_owned(), ""),
            Kind::Masked(_) => (
                "delegated".to_owned(),
                "this kernel handles the signal mask",
            ),
            Kind::Refused { errno: error, why } => (format!("refused: {}", errno(error.0)), why),
        };
        let (number, name) = (call.number, call.name);
        writeln!(text, "| {number} | `{name}` | {place} | {why} |").unwrap();
    }
    text
}

/// With WRITE_DOCS set, the chapter is written instead of compared.
#[test]
fn the_documentation_matches_the_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/src/calls.md");
    if std::env::var_os("WRITE_DOCS").is_some() {
        fs::write(&path, chapter()).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == chapter(),
        "regenerate it: WRITE_DOCS=1 cargo test -p insula-lwk"
    );
}
