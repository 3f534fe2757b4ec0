//! What `insula ps` lists.

use std::str::FromStr;

use insula_exec::container::ContainerView;
use insula_node::NodeView;

/// A condition, as `name=web`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Filter {
    key: Key,
    value: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    Name,
    State,
    Image,
    Node,
    Label,
}

/// The keys, also by podman's names.
const KEYS: [(&str, Key); 7] = [
    ("name", Key::Name),
    ("state", Key::State),
    ("status", Key::State),
    ("image", Key::Image),
    ("ancestor", Key::Image),
    ("node", Key::Node),
    ("label", Key::Label),
];

impl FromStr for Filter {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts = text.split_once('=').filter(|(_, value)| !value.is_empty());
        let (key, value) = parts.ok_or("it has the form KEY=VALUE")?;
        let known = KEYS.iter().find(|(name, _)| *name == key);
        let (_, key) = known.ok_or("the keys are name, state, image, node and label")?;
        Ok(Self {
            key: *key,
            value: value.to_owned(),
        })
    }
}

/// Conditions: of each key that is named, one must hold.
#[derive(Clone, Copy)]
pub(crate) struct Filters<'a>(pub(crate) &'a [Filter]);

impl Filters<'_> {
    /// Whether they say in which state what is listed has to be.
    pub(super) fn are_of_state(self) -> bool {
        self.0.iter().any(|one| one.key == Key::State)
    }

    pub(crate) fn have_node(self, view: &NodeView) -> bool {
        self.hold(|one| match one.key {
            Key::Name => view.name.contains(&one.value),
            Key::State => is_state(view.state, &one.value),
            Key::Image => view.image.as_deref() == Some(&one.value),
            Key::Node => false,
            Key::Label => view
                .labels
                .iter()
                .any(|label| label.is_asked_for(&one.value)),
        })
    }

    pub(crate) fn have_container(self, view: &ContainerView) -> bool {
        let record = &view.record;
        self.hold(|one| match one.key {
            Key::Name => record.name.as_str().contains(&one.value),
            Key::State => is_state(view.state, &one.value),
            Key::Image | Key::Label => false,
            Key::Node => record.node.as_str() == one.value,
        })
    }

    fn hold(self, holds: impl Fn(&Filter) -> bool) -> bool {
        self.0.iter().all(|one| {
            let mut same = self.0.iter().filter(|other| other.key == one.key);
            same.any(&holds)
        })
    }
}

/// Whether it is that state. What nodes call stopped, containers call exited.
fn is_state(state: &str, asked: &str) -> bool {
    let one = |text: &str| match text {
        "exited" => "stopped".to_owned(),
        text => text.to_owned(),
    };
    one(state) == one(asked)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{container, view};
    use super::*;

    fn filters(texts: &[&str]) -> Vec<Filter> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn one_of_each_key_must_hold() {
        let (web, gone) = (view("web", None), view("old-web", Some("killed")));
        let shop = container("shop", "web");
        let listed = |texts: &[&str]| {
            let filters = filters(texts);
            let filters = Filters(&filters);
            [
                filters.have_node(&web),
                filters.have_node(&gone),
                filters.have_container(&shop),
            ]
        };
        assert_eq!(listed(&[]), [true; 3]);
        assert_eq!(listed(&["name=web"]), [true, true, false]);
        assert_eq!(listed(&["name=old", "name=shop"]), [false, true, true]);
        assert_eq!(
            listed(&["name=web", "status=running"]),
            [true, false, false]
        );
        assert_eq!(listed(&["status=exited"]), [false, true, false]);
        assert_eq!(listed(&["ancestor=debian"]), [true, false, false]);
        assert_eq!(listed(&["label=tier"]), [true, true, false]);
        assert_eq!(listed(&["label=tier=back"]), [false; 3]);
        assert_eq!(listed(&["node=web"]), [false, false, true]);
    }

    #[test]
    fn what_is_no_filter_is_refused() {
        for text in ["", "web", "name=", "colour=red"] {
            assert!(text.parse::<Filter>().is_err(), "{text}");
        }
    }
}
