//! What `insula` prints as JSON is as its published schema says.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use jsonschema::{ValidationError, Validator};
use serde_json::{Value, json};

use crate::base::Finding;

/// The schema: a property for each command.
const PUBLISHED: &str = include_str!("../../../../docs/src/output.schema.json");

/// The same, read once, and the validators of commands, each made once.
static SCHEMA: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(PUBLISHED).unwrap_or_default());
static VALIDATORS: Mutex<BTreeMap<String, Arc<Validator>>> = Mutex::new(BTreeMap::new());

/// The value that a command has printed, if it is as the schema says.
pub(crate) fn checked(words: &[&str], value: Value) -> Result<Value, Finding> {
    let commands = SCHEMA["properties"].as_object();
    let commands = commands
        .into_iter()
        .flatten()
        .filter(|one| is_of(words, one.0));
    let longest = commands.max_by_key(|(command, _)| command.len());
    let (command, schema) = longest.ok_or_else(|| Finding::new("its JSON has no schema"))?;
    let validator = validator(command, schema)?;
    let wrong = |error: ValidationError<'_>| {
        let place = error.instance_path();
        let text = format!("not as the schema of `{command}` says, at `{place}`: {error}");
        Finding::new(text)
    };
    validator.validate(&value).map_err(wrong)?;
    Ok(value)
}

fn validator(command: &str, schema: &Value) -> Result<Arc<Validator>, Finding> {
    let mut made = VALIDATORS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(validator) = made.get(command) {
        return Ok(Arc::clone(validator));
    }
    let whole = json!({ "$defs": SCHEMA["$defs"], "allOf": [schema] });
    let validator = Arc::new(jsonschema::validator_for(&whole)?);
    made.insert(command.to_owned(), Arc::clone(&validator));
    Ok(validator)
}

/// Whether words are those of this command: its first one, and further ones somewhere.
fn is_of(words: &[&str], command: &str) -> bool {
    let mut own = command.split(' ');
    own.next() == words.first().copied() && own.all(|word| words.contains(&word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_compared_with_the_schema_of_its_command() {
        let dumps = ["dump", "ls", "--json"];
        let dump = json!({
            "name": "a", "path": "/a", "written_unix_s": 1, "size_bytes": 2, "disk_bytes": 3,
        });
        assert!(checked(&dumps, json!([dump])).is_ok());
        let message = |words: &[&str], value| checked(words, value).unwrap_err().to_string();
        let without = message(&dumps, json!([{ "name": "a" }]));
        assert!(
            without.contains("`dump ls`") && without.contains("path"),
            "{without}"
        );
        assert!(message(&["dump", "--json", "node"], json!([dump])).contains("`dump`"));
        assert!(message(&["exec", "node"], json!(1)).contains("no schema"));
    }
}
