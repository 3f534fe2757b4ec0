//! The book's table of kernel options equals the options of nodes.

use std::fmt::Write;
use std::path::Path;
use std::{env, fs};

use insula_boot::options::{Condition, OPTIONS, REFUSED, Rule};

const BEGIN: &str = "<!-- options: begin -->\n";
const END: &str = "<!-- options: end -->\n";
/// Set to write the table into the book instead of comparing it.
const UPDATE: &str = "UPDATE_BOOK";

fn table() -> String {
    let mut text = String::from("| option | why | if the user sets it too |\n|---|---|---|\n");
    for option in OPTIONS {
        let value = match option.value {
            "" => String::new(),
            value => format!("={value}"),
        };
        let condition = match option.condition {
            Condition::Always => "",
            Condition::WithSpares => " (with spare processors)",
            Condition::WithoutDevices => " (without devices)",
            Condition::WithoutSerialConsole => " (without a serial console)",
            Condition::Unconfined => " (unless confined)",
        };
        let rule = match option.rule {
            Rule::Fixed => "refused",
            Rule::Overridable => "the user's",
            Rule::Combined => "both",
            Rule::Handled => "the node's; the base implements the user's",
        };
        let name = option.name;
        writeln!(
            text,
            "| `{name}{value}`{condition} | {} | {rule} |",
            option.why
        )
        .unwrap();
    }
    for option in REFUSED {
        writeln!(text, "| `{}` | it {} | refused |", option.name, option.why).unwrap();
    }
    text
}

#[test]
fn the_book_lists_each_option() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/src/node-view.md");
    let book = fs::read_to_string(&path).unwrap();
    let (before, rest) = book.split_once(BEGIN).expect("the table's beginning");
    let (old, after) = rest.split_once(END).expect("the table's end");
    let new = table();
    if env::var_os(UPDATE).is_some() {
        fs::write(&path, format!("{before}{BEGIN}{new}{END}{after}")).unwrap();
        return;
    }
    assert_eq!(old, new, "`{UPDATE}=1 cargo test -p insula-boot` writes it");
}
