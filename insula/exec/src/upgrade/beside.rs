//! The node beside the one that is upgraded.

use insula_base::error::Error;
use insula_driver::name::Name;

/// Ending of its name.
const ENDING: &str = ".upgrade";

/// The name of the node beside `node` during its upgrade: of the new one until they exchange their
/// names, then of the old one.
///
/// # Errors
/// When `node`'s name leaves no room for it.
pub fn beside(node: &Name) -> Result<Name, Error> {
    let name = format!("{node}{ENDING}").parse();
    name.map_err(|_| {
        Error::new(format!(
            "the name '{node}' is too long: the node beside it is to be called '{node}{ENDING}'"
        ))
        .untouched()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_leave_no_room() {
        let of = |text: &str| beside(&text.parse().unwrap());
        assert_eq!(of("web").unwrap().as_str(), "web.upgrade");
        assert_eq!(of(&"x".repeat(55)).unwrap().as_str().len(), 63);
        assert!(of(&"x".repeat(56)).is_err());
    }
}
