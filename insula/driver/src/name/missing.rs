//! Unknown names, with a suggestion.

/// An unknown name, and the known one that was probably meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    name: String,
    suggestion: Option<String>,
}

impl Missing {
    /// Makes one, with the nearest of the known names.
    #[must_use]
    pub fn among(name: &str, names: impl IntoIterator<Item = String>) -> Self {
        let distance = |other: &String| strsim::damerau_levenshtein(name, other);
        let suggestion = names.into_iter().min_by_key(distance);
        Self {
            name: name.to_owned(),
            suggestion: suggestion.filter(|other| distance(other) <= distance_max(name)),
        }
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The suggestion as a sentence and a space; empty if there is none.
    #[must_use]
    pub fn hint(&self) -> String {
        let hint = |suggestion: &String| format!("did you mean '{suggestion}'? ");
        self.suggestion.as_ref().map(hint).unwrap_or_default()
    }
}

/// Number of typing errors for which a name is still suggested (Damerau-Levenshtein distance).
fn distance_max(name: &str) -> usize {
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
    fn distant_names_are_not_suggested() {
        assert_eq!(hint("mail", &["web", "database"]), "");
        assert_eq!(hint("x", &["web"]), "");
        assert_eq!(hint("web", &[]), "");
    }
}
