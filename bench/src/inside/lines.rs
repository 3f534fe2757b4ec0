//! What a node's programs have said.

use insula::node::NodeLog;

/// The lines of a node's log so far that have `beginning` in them, from there on.
#[must_use]
pub fn lines(log: &NodeLog, beginning: &str) -> Vec<String> {
    let mut found = Vec::new();
    if let Some(placement) = log.locate() {
        let mut reader = log.reader(placement);
        while let Ok(Some(record)) = log.next(&mut reader) {
            let text = record.text();
            found.extend(text.find(beginning).map(|at| text[at..].to_owned()));
        }
    }
    found
}
