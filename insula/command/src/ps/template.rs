//! Lines by a template, as podman has them: `{{.Names}} {{.State}}`.

use insula_base::error::Error;
use insula_base::units::Size;
use insula_exec::container::ContainerView;
use insula_node::NodeView;

use super::{Failure, state_text};
use crate::container;
use crate::report::{Align, Table, duration};

/// Before a template: print its columns as a table with headings.
const TABLE: &str = "table ";
/// What a template can name.
const KEYS: [&str; 12] = [
    "ID", "Names", "State", "Status", "Image", "Node", "CPUs", "Memory", "Kernel", "Ports",
    "Command", "Labels",
];

/// A part of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    /// An index into [`KEYS`].
    Key(usize),
}

/// The values of all keys, of a node or container; empty if it has none.
type Row = [String; KEYS.len()];

/// Nodes and containers by a template, or as JSON if that is `json`.
pub(super) fn rendered(
    format: &str,
    nodes: &[NodeView],
    containers: &[ContainerView],
) -> Result<String, Failure> {
    if format == "json" {
        let json = container::with_nodes(nodes.to_vec(), containers);
        return Ok(serde_json::to_string_pretty(&json)? + "\n");
    }
    let (text, is_table) = match format.strip_prefix(TABLE) {
        Some(rest) => (rest, true),
        None => (format, false),
    };
    let parts = parse(&text.replace("\\t", "\t").replace("\\n", "\n"))?;
    let rows = nodes.iter().map(of_node);
    let rows = rows.chain(containers.iter().map(of_container));
    Ok(match is_table {
        true => table(&parts, rows).to_string(),
        false => rows.map(|row| line(&parts, &row) + "\n").collect(),
    })
}

fn parse(text: &str) -> Result<Vec<Part>, Error> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("{{") {
        let (name, after) = after.split_once("}}").ok_or_else(|| unknown(after))?;
        let name = name.trim();
        let key = name.strip_prefix('.');
        let key = key.and_then(|key| {
            KEYS.iter()
                .position(|known| known.eq_ignore_ascii_case(key))
        });
        parts.push(Part::Text(before.to_owned()));
        parts.push(Part::Key(key.ok_or_else(|| unknown(name))?));
        rest = after;
    }
    parts.push(Part::Text(rest.to_owned()));
    parts.retain(|part| !matches!(part, Part::Text(text) if text.is_empty()));
    Ok(parts)
}

fn unknown(name: &str) -> Error {
    let known: Vec<_> = KEYS.iter().map(|key| format!("{{{{.{key}}}}}")).collect();
    Error::new(format!("the template names '{name}', which there is not"))
        .hint(format!("there are {}", known.join(", ")))
}

fn line(parts: &[Part], row: &Row) -> String {
    let texts = parts.iter().map(|part| match part {
        Part::Text(text) => text.as_str(),
        Part::Key(key) => &row[*key],
    });
    texts.collect()
}

/// A table of what the template names.
fn table(parts: &[Part], rows: impl Iterator<Item = Row>) -> Table {
    let keys = parts.iter().filter_map(|part| match part {
        Part::Key(key) => Some(*key),
        Part::Text(_) => None,
    });
    let keys: Vec<_> = keys.collect();
    let headings: Vec<_> = keys.iter().map(|&key| KEYS[key].to_uppercase()).collect();
    let columns: Vec<_> = headings
        .iter()
        .map(|one| (one.as_str(), Align::Left))
        .collect();
    let mut table = Table::new(&columns);
    for row in rows {
        table.row(keys.iter().map(|&key| row[key].clone()));
    }
    table
}

fn of_node(view: &NodeView) -> Row {
    let labels: Vec<_> = view.labels.iter().map(ToString::to_string).collect();
    [
        view.id.to_string(),
        view.name.clone(),
        view.state.to_owned(),
        format!("{}, ran {}", state_text(view), duration(view.ran_ns)),
        view.image.clone().unwrap_or_default(),
        String::new(),
        view.cpus.to_string(),
        Size(view.memory_bytes).to_string(),
        view.release.clone().unwrap_or_default(),
        String::new(),
        String::new(),
        labels.join(","),
    ]
}

fn of_container(view: &ContainerView) -> Row {
    let record = &view.record;
    let ports: Vec<_> = record.publish.iter().map(ToString::to_string).collect();
    [
        String::new(),
        record.name.to_string(),
        view.state.to_owned(),
        container::state_text(view),
        String::new(),
        container::place(record),
        String::new(),
        String::new(),
        String::new(),
        ports.join(","),
        record.command.join(" "),
        String::new(),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::tests::{container, view};
    use super::*;

    fn shown(format: &str) -> String {
        let (nodes, containers) = ([view("web", None)], [container("shop", "web")]);
        rendered(format, &nodes, &containers).unwrap()
    }

    #[test]
    fn lines_have_what_the_template_names() {
        assert_eq!(shown("{{.Names}}"), "web\nshop\n");
        assert_eq!(
            shown("{{ .names }}\\t<{{.Command}}>"),
            "web\t<>\nshop\t</bin/server -x>\n"
        );
        assert_eq!(shown("x"), "x\nx\n");
        let json: serde_json::Value = serde_json::from_str(&shown("json")).unwrap();
        assert_eq!(json[0]["containers"][0]["name"], "shop");
    }

    #[test]
    fn a_table_has_headings() {
        let table = shown("table {{.Names}} {{.State}} {{.Node}}");
        assert_eq!(
            table,
            "NAMES  STATE    NODE\nweb    running\nshop   running  web\n"
        );
    }

    #[test]
    fn unknown_names_are_refused() {
        for format in ["{{.Colour}}", "{{.Names", "{{Names}}", "{{}}"] {
            let error = rendered(format, &[], &[]).unwrap_err().to_string();
            assert!(error.contains("{{.Names}}"), "{error}");
        }
    }
}
