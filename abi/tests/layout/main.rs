//! Proves that this crate and the headers in `include/` define the same layout: a C program prints
//! sizes, offsets and values, and each must equal the Rust one. A name of the headers that is
//! missing in the tables of these files fails the test too.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

mod channel;
mod control;
mod files;
mod grant;
mod hotplug;
mod lwk;
mod monitor;
mod net;
mod pci;
mod running;
mod server;
mod shared_core;
mod virtio;

const HEADERS: [&str; 15] = [
    "insula.h",
    "insula_node.h",
    "insula_mirror.h",
    "insula_channel.h",
    "insula_lwk.h",
    "insula_running.h",
    "insula_monitor.h",
    "insula_grant.h",
    "insula_hotplug.h",
    "insula_shared_core.h",
    "insula_virtio.h",
    "insula_server.h",
    "insula_files.h",
    "insula_net.h",
    "insula_pci.h",
];

/// A C expression and the value that Rust has for it.
type Facts = BTreeMap<String, i128>;

fn size_of_field<S, F>(_: fn(&S) -> &F) -> usize {
    size_of::<F>()
}

macro_rules! structure {
    ($facts:ident, $rust:ident, $c:literal, [$($field:ident),+]) => {
        $facts.insert(concat!("sizeof(struct ", $c, ")").into(), size_of::<$rust>() as i128);
        $(
            let (c, field) = ($c, stringify!($field));
            let offset = format!("offsetof(struct {c}, {field})");
            $facts.insert(offset, std::mem::offset_of!($rust, $field) as i128);
            $facts.insert(
                format!("sizeof(((struct {c} *)0)->{field})"),
                crate::size_of_field::<$rust, _>(|whole| &whole.$field) as i128,
            );
        )+
    };
}

macro_rules! values {
    ($facts:ident, { $($c:ident = $rust:expr),+ $(,)? }) => {
        $( $facts.insert(stringify!($c).into(), $rust as i128); )+
    };
}

use {structure, values};

fn all<const COUNT: usize>(of_each: [Facts; COUNT]) -> Facts {
    of_each.into_iter().flatten().collect()
}

fn structures() -> Facts {
    all([
        control::structures(),
        channel::structures(),
        lwk::structures(),
        running::structures(),
        monitor::structures(),
        grant::structures(),
        hotplug::structures(),
        shared_core::structures(),
        virtio::structures(),
        server::structures(),
        pci::structures(),
    ])
}

fn constants() -> Facts {
    all([
        control::constants(),
        channel::constants(),
        lwk::constants(),
        running::constants(),
        monitor::constants(),
        grant::constants(),
        shared_core::constants(),
        virtio::constants(),
        server::constants(),
        files::constants(),
        net::constants(),
        pci::constants(),
    ])
}

fn enumerators() -> Facts {
    all([
        control::enumerators(),
        channel::enumerators(),
        lwk::enumerators(),
        monitor::enumerators(),
        grant::enumerators(),
        hotplug::enumerators(),
        files::enumerators(),
        server::enumerators(),
        net::enumerators(),
    ])
}

fn include_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("include")
}

/// The headers without their comments.
fn header() -> String {
    let read = |name| std::fs::read_to_string(include_folder().join(name)).unwrap();
    let text: String = HEADERS.map(read).concat();
    let mut bare = String::new();
    let mut rest = text.as_str();
    while let Some((before, after)) = rest.split_once("/*") {
        bare.push_str(before);
        rest = after.split_once("*/").expect("an unfinished comment").1;
    }
    bare + rest
}

/// Compiles and runs a program that prints every expression's value, one to a line.
fn ask_c(expressions: &Facts) -> Facts {
    let mut source = String::new();
    for header in HEADERS {
        writeln!(source, "#include \"{header}\"").unwrap();
    }
    source.push_str("#include <stddef.h>\n#include <stdio.h>\nint main(void)\n{\n");
    for expression in expressions.keys() {
        writeln!(source, "\tprintf(\"%lld\\n\", (long long)({expression}));").unwrap();
    }
    source.push_str("\treturn 0;\n}\n");
    let folder = tempfile::tempdir().unwrap();
    let (program, file) = (folder.path().join("layout"), folder.path().join("layout.c"));
    std::fs::write(&file, source).unwrap();
    let compiled = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Wpadded", "-Werror", "-I"])
        .arg(include_folder())
        .arg("-o")
        .args([&program, &file])
        .status()
        .expect("the C compiler `cc` is needed");
    assert!(compiled.success(), "the header does not stand by itself");
    let printed = String::from_utf8(Command::new(program).output().unwrap().stdout).unwrap();
    expressions
        .keys()
        .cloned()
        .zip(printed.lines().map(|line| line.parse().unwrap()))
        .collect()
}

#[test]
fn c_and_rust_agree() {
    let mut rust = structures();
    rust.extend(constants());
    rust.extend(enumerators());
    let c = ask_c(&rust);
    assert_eq!(c.len(), rust.len());
    for (expression, value) in &rust {
        assert_eq!(
            c[expression], *value,
            "{expression}: left is C, right is Rust"
        );
    }
}

#[test]
fn no_structure_and_no_field_is_left_out() {
    let known: BTreeSet<_> = structures().into_keys().collect();
    let header = header();
    for block in header
        .split("\nstruct ")
        .skip(1)
        .filter(|block| block.split('{').next().unwrap().ends_with(' '))
    {
        let (name, body) = block.split_once(" {").unwrap();
        for field in body
            .split_once('}')
            .unwrap()
            .0
            .split(';')
            .filter_map(|line| line.split_whitespace().last())
        {
            let field = field.split('[').next().unwrap();
            assert!(
                known.contains(&format!("offsetof(struct {name}, {field})")),
                "{name}.{field} has no mirror"
            );
        }
    }
    assert_eq!(
        header.matches("\nstruct ").count(),
        known
            .iter()
            .filter(|f| f.starts_with("sizeof(struct"))
            .count()
    );
}

#[test]
fn no_constant_is_left_out() {
    let known: BTreeSet<_> = constants()
        .into_keys()
        .chain(enumerators().into_keys())
        .collect();
    let header = header();
    let defined = header
        .lines()
        .filter_map(|line| line.strip_prefix("#define ")?.split_whitespace().next());
    let is_known = |name: &str| match name.split_once('(') {
        Some((name, _)) => known
            .iter()
            .any(|fact| fact.starts_with(&format!("{name}("))),
        None => known.contains(name),
    };
    let enumerated = header
        .lines()
        .filter_map(|line| line.strip_prefix('\t')?.split_once(" = "))
        .map(|(name, _)| name);
    for name in defined.chain(enumerated) {
        let guard = HEADERS
            .iter()
            .any(|header| name == header.to_uppercase().replace('.', "_"));
        assert!(guard || is_known(name), "{name} has no mirror");
    }
}
