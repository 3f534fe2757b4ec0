//! Where the values of a file are in its text.

use std::collections::BTreeMap;

use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::diagnostic::Span;

/// Where a value is, and those in it.
#[derive(Clone, Debug, Default)]
pub struct Spans {
    /// Of a table the place of its name, since the table is too long to be shown.
    at: Span,
    /// By key; those of a list by index.
    inner: BTreeMap<String, Spans>,
}

impl Spans {
    /// The places of everything in a file.
    pub(super) fn of_file(table: &DeTable<'_>) -> Self {
        Self::of_table(0..0, table)
    }

    fn of_table(at: Span, table: &DeTable<'_>) -> Self {
        let entry = |(key, value): (&Spanned<DeString<'_>>, &Spanned<_>)| {
            (key.get_ref().to_string(), Self::of_value(key.span(), value))
        };
        Self {
            at,
            inner: table.iter().map(entry).collect(),
        }
    }

    fn of_value(key_at: Span, value: &Spanned<DeValue<'_>>) -> Self {
        let at = value.span();
        match value.get_ref() {
            DeValue::Table(table) => Self::of_table(key_at, table),
            DeValue::Array(list) => {
                let all = list.iter().enumerate();
                let entry = |(index, one): (usize, &Spanned<_>)| {
                    (index.to_string(), Self::of_value(one.span(), one))
                };
                Self {
                    at,
                    inner: all.map(entry).collect(),
                }
            }
            _ => Self {
                at,
                inner: BTreeMap::new(),
            },
        }
    }

    /// The places in a value of this one.
    pub(super) fn of(&self, key: &str) -> Self {
        self.inner.get(key).cloned().unwrap_or_else(|| Self {
            at: self.at.clone(),
            inner: BTreeMap::new(),
        })
    }

    /// Whether the file has this key.
    pub(super) fn has(&self, key: &str) -> bool {
        self.inner.contains_key(key)
    }

    /// The place of a key such as `ready.log` or `after.0`; where it is not given that of what is
    /// around it.
    #[must_use]
    pub fn at(&self, path: &str) -> Span {
        let (key, rest) = path.split_once('.').unwrap_or((path, ""));
        match self.inner.get(key) {
            Some(inner) => inner.at(rest),
            None => self.at.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_or_what_is_around_it() {
        let text = "a = 1\n[nodes.web]\nafter = [\"b\", \"c\"]\nready = { log = \"d\" }\n";
        let spans = Spans::of_file(DeTable::parse(text).unwrap().get_ref());
        let web = spans.of("nodes").of("web");
        let shown = |span: Span| &text[span];
        assert_eq!(shown(spans.at("a")), "1");
        assert_eq!(shown(web.at("after.1")), "\"c\"");
        assert_eq!(shown(web.at("ready.log")), "\"d\"");
        assert_eq!(shown(web.at("ready.timeout_s")), "ready");
        assert_eq!(shown(web.at("cpus")), "web");
        assert_eq!(spans.at("project"), 0..0);
        assert!(web.has("after") && !web.has("cpus"));
    }
}
