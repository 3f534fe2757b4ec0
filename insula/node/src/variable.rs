//! Environment variables of a node's program.

use std::fmt;
use std::str::FromStr;

use insula_base::serde_as_text;

/// An environment variable, as `NAME=VALUE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
}

/// The text is no variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected NAME=VALUE, for example LANG=C.UTF-8")]
pub struct VariableError;

impl FromStr for Variable {
    type Err = VariableError;

    fn from_str(text: &str) -> Result<Self, VariableError> {
        let (name, value) = text.split_once('=').ok_or(VariableError)?;
        if name.is_empty() || text.contains('\0') {
            return Err(VariableError);
        }
        Ok(Self {
            name: name.to_owned(),
            value: value.to_owned(),
        })
    }
}

impl fmt::Display for Variable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.value)
    }
}

serde_as_text!(Variable, "^[^=]+=");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_sign_separates() {
        let variable: Variable = "A=b=c".parse().unwrap();
        assert_eq!((&*variable.name, &*variable.value), ("A", "b=c"));
        assert_eq!(variable.to_string(), "A=b=c");
        assert_eq!("A=".parse::<Variable>().unwrap().value, "");
        for text in ["", "A", "=b", "A=\0"] {
            assert_eq!(text.parse::<Variable>(), Err(VariableError), "{text:?}");
        }
    }
}
