//! Files with environment variables (`insula run --env-file`), as podman has them.

use std::fs;
use std::path::{Path, PathBuf};

use insula_base::error::Error;
use insula_node::Variable;

use super::cli::NewNode;

/// Begins a line that is a comment.
const COMMENT: char = '#';

/// Adds the variables of a new node's files before its own ones, which count more.
///
/// # Errors
/// As those of [`read_all`].
pub(super) fn add_to(node: &mut NewNode) -> Result<(), Error> {
    let given = read_all(&node.env_file)?;
    node.spec.env.splice(0..0, given);
    Ok(())
}

/// The variables of the files, in their order.
///
/// # Errors
/// A file that cannot be read, or a line that is no variable; nothing was touched.
fn read_all(paths: &[PathBuf]) -> Result<Vec<Variable>, Error> {
    let mut variables = Vec::new();
    for path in paths {
        let text = fs::read_to_string(path);
        let text = text.map_err(|error| unread(path).because(error))?;
        for line in text.lines() {
            variables.extend(variable(line, path, |name| std::env::var(name).ok())?);
        }
    }
    Ok(variables)
}

/// The variable of a line: `NAME=VALUE`, or a name alone for one that this command has.
fn variable(
    line: &str,
    path: &Path,
    own: impl Fn(&str) -> Option<String>,
) -> Result<Option<Variable>, Error> {
    let line = line.trim_start();
    if line.is_empty() || line.starts_with(COMMENT) {
        return Ok(None);
    }
    if !line.contains('=') {
        let name = line.trim_end().to_owned();
        return Ok(own(&name).map(|value| Variable { name, value }));
    }
    let variable = line.parse();
    variable
        .map(Some)
        .map_err(|error| unread(path).because(error))
}

fn unread(path: &Path) -> Error {
    Error::new(format!("{} cannot be read", path.display()))
        .untouched()
        .about("env-file")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_those_of_podman() {
        let own = |name: &str| (name == "HOME").then(|| "/root".to_owned());
        let read = |line: &str| variable(line, Path::new("/x"), own);
        let text = |line: &str| read(line).unwrap().map(|one| one.to_string());
        assert_eq!(text("  A=b # c"), Some("A=b # c".into()));
        assert_eq!(text("HOME "), Some("HOME=/root".into()));
        for line in ["", "  ", "# A=b", "UNKNOWN"] {
            assert_eq!(text(line), None, "{line:?}");
        }
        let error = read("=b").unwrap_err().to_string();
        assert!(error.contains("/x cannot be read"), "{error}");
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = read_all(&["/no/such".into()]).unwrap_err();
        assert!(error.to_string().contains("/no/such"));
    }
}
