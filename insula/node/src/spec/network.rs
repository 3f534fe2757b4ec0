//! The network that a node asks for.

use std::str::FromStr;

use insula_driver::name::Name;
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::networks::DEFAULT;

/// The network that a node asks for: in a file `true`, or the name of one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NetworkSpec {
    /// None.
    #[default]
    None,
    /// That of all nodes that ask for no other.
    Default,
    /// The one of this name (`insula network create`).
    Named(Name),
}

impl NetworkSpec {
    /// Whether it is one.
    #[must_use]
    pub fn is_some(&self) -> bool {
        *self != Self::None
    }

    /// The name, if it is not the one of all nodes.
    #[must_use]
    pub fn name(&self) -> Option<&Name> {
        match self {
            Self::Named(name) => Some(name),
            Self::None | Self::Default => None,
        }
    }
}

impl FromStr for NetworkSpec {
    type Err = <Name as FromStr>::Err;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            DEFAULT => Ok(Self::Default),
            name => name.parse().map(Self::Named),
        }
    }
}

impl Serialize for NetworkSpec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::None => serializer.serialize_bool(false),
            Self::Default => serializer.serialize_bool(true),
            Self::Named(name) => serializer.serialize_str(name.as_str()),
        }
    }
}

impl<'de> Deserialize<'de> for NetworkSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Form)
    }
}

struct Form;

impl Visitor<'_> for Form {
    type Value = NetworkSpec;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("true, false or the name of a network")
    }

    fn visit_bool<E: Error>(self, is_on: bool) -> Result<NetworkSpec, E> {
        Ok(match is_on {
            true => NetworkSpec::Default,
            false => NetworkSpec::None,
        })
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<NetworkSpec, E> {
        text.parse().map_err(E::custom)
    }
}
