//! Names that nothing has.

/// A name that nothing has, and the one that was perhaps meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    name: String,
    meant: Option<String>,
}

impl Missing {
    /// One that is not among those.
    #[must_use]
    pub fn among(name: &str, names: impl IntoIterator<Item = String>) -> Self {
        let distance = |other: &String| strsim::damerau_levenshtein(name, other);
        let meant = names.into_iter().min_by_key(distance);
        Self {
            name: name.to_owned(),
            meant: meant.filter(|other| distance(other) <= slips(name)),
        }
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What to say of the other, if there is one: a sentence, and a space.
    #[must_use]
    pub fn hint(&self) -> String {
        let hint = |meant: &String| format!("did you mean '{meant}'? ");
        self.meant.as_ref().map(hint).unwrap_or_default()
    }
}

/// How many slips of the pen a name has room for: letters wrong, too many, missing, in the wrong order.
fn slips(name: &str) -> usize {
    (name.chars().count() / 3).clamp(1, 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hint(name: &str, names: &[&str]) -> String {
        Missing::among(name, names.iter().copied().map(str::to_owned)).hint()
    }

    #[test]
    fn the_nearest_name_is_suggested() {
        let there = ["web", "database", "debian-12"];
        assert_eq!(hint("wbe", &there), "did you mean 'web'? ");
        assert_eq!(hint("datbase", &there), "did you mean 'database'? ");
        assert_eq!(hint("debian-13", &there), "did you mean 'debian-12'? ");
    }

    #[test]
    fn what_is_not_near_is_not() {
        assert_eq!(hint("mail", &["web", "database"]), "");
        assert_eq!(hint("x", &["web"]), "");
        assert_eq!(hint("web", &[]), "");
    }
}
