//! Output of a node's programs.

use insula_node::NodeLog;

/// Lines of a node's log so far that contain `prefix`, from there on.
#[must_use]
pub fn lines(log: &NodeLog, prefix: &str) -> Vec<String> {
    let mut found = Vec::new();
    if let Some(placement) = log.locate() {
        let mut reader = log.reader(placement);
        while let Ok(Some(record)) = log.next(&mut reader) {
            let text = record.text();
            found.extend(text.find(prefix).map(|at| text[at..].to_owned()));
        }
    }
    found
}
