//! What a node's supervisor watches it for.

use std::path::Path;

use insula_base::error::{Error, Source};
use insula_rules::Rules;

use super::NodeSpec;

/// The rules of a spec: of its file, for what it names; `None` if the node is not watched.
///
/// # Errors
/// When the file cannot be read or has no valid rules, or a finding cannot be repaired; nothing was
/// touched.
pub(super) fn rules(spec: &NodeSpec) -> Result<Option<Rules>, Error> {
    let rules = match &spec.watch_rules {
        None if spec.watch.is_empty() => return Ok(None),
        None => Rules::default(),
        Some(path) => read_rules(path).map_err(|error| error.about("watch_rules"))?,
    };
    let rules = rules.watch_for(&spec.watch).map_err(|error| {
        let error = Error::new(error.to_string()).untouched();
        error.about("watch")
    })?;
    Ok(Some(rules))
}

/// Reads a file with rules.
///
/// # Errors
/// When it cannot be read or has no valid rules; nothing was touched.
pub fn read_rules(path: &Path) -> Result<Rules, Error> {
    let failed = |source: Source| {
        let what = format!("the rules in '{}' cannot be used", path.display());
        Error::new(what).because(source).untouched()
    };
    let text = std::fs::read_to_string(path).map_err(|error| failed(error.into()))?;
    Rules::parse(&text).map_err(|error| failed(error.into()))
}

#[cfg(test)]
mod tests {
    use insula_rules::{Action, Kind};

    use super::*;

    #[test]
    fn the_spec_says_what_a_node_is_watched_for() {
        let mut spec = NodeSpec::default();
        assert_eq!(rules(&spec).unwrap(), None);
        spec.watch = vec!["oops=restart".parse().unwrap()];
        let found = rules(&spec).unwrap().unwrap();
        assert_eq!(found.action(Kind::Oops), Action::Restart);
        assert!(!found.looks_for(Kind::TaskHung));
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, "[on]\ntask-hung = 'dump'").unwrap();
        spec.watch_rules = Some(file.path().to_owned());
        spec.watch.clear();
        let found = rules(&spec).unwrap().unwrap();
        assert_eq!(found.action(Kind::TaskHung), Action::Dump);
        assert!(found.looks_for(Kind::Oops));
    }

    #[test]
    fn what_is_wrong_names_its_option() {
        let mut spec = NodeSpec {
            watch: vec!["oops=repair".parse().unwrap()],
            ..NodeSpec::default()
        };
        assert_eq!(rules(&spec).unwrap_err().option, "watch");
        spec.watch_rules = Some("/no/rules".into());
        let error = rules(&spec).unwrap_err();
        assert_eq!(error.option, "watch_rules");
        assert!(error.to_string().contains("'/no/rules'"), "{error}");
    }
}
