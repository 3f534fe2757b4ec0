//! The published schema and the book's table of keys agree with the types.

use std::path::{Path, PathBuf};

use schemars::Schema;
use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use serde_json::Value;

use crate::file::File;

/// TOML has no null: an optional value is left out.
fn no_null(schema: &mut Schema) {
    if let Some(Value::Array(types)) = schema.get_mut("type") {
        types.retain(|one| one != "null");
        if let [only] = types.as_slice() {
            let only = only.clone();
            schema.insert("type".to_owned(), only);
        }
    }
    if let Some(Value::Array(any)) = schema.get_mut("anyOf") {
        any.retain(|one| one.get("type") != Some(&"null".into()));
    }
}

/// Environment variable: set to write both into the book instead of comparing them.
const UPDATE: &str = "UPDATE_BOOK";
const BEGIN: &str = "<!-- keys: begin -->\n";
const END: &str = "<!-- keys: end -->\n";

fn schema() -> Value {
    let settings = SchemaSettings::draft2020_12().with_transform(RecursiveTransform(no_null));
    let schema = settings.into_generator().into_root_schema_for::<File>();
    schema.to_value()
}

fn book() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src")
}

/// Compares a file of the book with its expected text, or writes it.
fn check_or_update(path: &Path, old: &str, new: &str) {
    if std::env::var_os(UPDATE).is_some() {
        std::fs::write(path, new).unwrap();
    } else {
        assert_eq!(
            old, new,
            "`{UPDATE}=1 cargo test -p insula-compose` writes it"
        );
    }
}

#[test]
fn the_published_schema_matches_the_types() {
    let path = book().join("insula.schema.json");
    let published = std::fs::read_to_string(&path).unwrap_or_default();
    let schema = serde_json::to_string_pretty(&schema()).unwrap() + "\n";
    check_or_update(&path, &published, &schema);
}

/// A table of the keys of one of the schema's tables.
fn keys(heading: &str, table: &Value) -> String {
    let mut text = format!("| {heading} | |\n|---|---|\n");
    for (key, value) in table["properties"].as_object().unwrap() {
        let meaning = value["description"].as_str().unwrap_or_default();
        text += &format!("| `{key}` | {} |\n", meaning.replace('\n', " "));
    }
    text
}

#[test]
fn the_book_lists_each_key() {
    let schema = schema();
    let tables = [
        keys("at the top", &schema),
        keys("in `[images.NAME]`", &schema["$defs"]["ImageTable"]),
        keys("in `[nodes.NAME]`", &schema["$defs"]["NodeSpec"]),
        keys("in `ready`", &schema["$defs"]["Ready"]),
        keys("in `[networks.NAME]`", &schema["$defs"]["NetworkTable"]),
        keys("in `[servers.NODE.NAME]`", &schema["$defs"]["ServerSpec"]),
        keys("in `[[policy]]`", &schema["$defs"]["Policy"]),
    ];
    let path = book().join("compose.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(BEGIN).expect("the tables' beginning");
    let (_, after) = rest.split_once(END).expect("the tables' end");
    check_or_update(
        &path,
        &text,
        &format!("{before}{BEGIN}{}{END}{after}", tables.join("\n")),
    );
}
