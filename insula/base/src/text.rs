//! Values that users write as text: their `FromStr` and `Display` are their form in files, too.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use serde::de::{Deserializer, Error, Visitor};

/// Deserializes a value from its text. By a visitor: so a deserializer knows where the text is, and
/// shows that with an error.
///
/// # Errors
/// Those of the deserializer and of the value's `FromStr`.
pub fn deserialize<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: FromStr<Err: fmt::Display>,
    D: Deserializer<'de>,
{
    deserializer.deserialize_str(Text(PhantomData))
}

struct Text<T>(PhantomData<T>);

impl<T: FromStr<Err: fmt::Display>> Visitor<'_> for Text<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }
}

/// Implements serde's traits for a type with `FromStr` and `Display`; with the feature `schemars` of
/// its crate also the schema, by a regular expression.
#[macro_export]
macro_rules! serde_as_text {
    ($type:ident, $pattern:literal) => {
        impl ::serde::Serialize for $type {
            fn serialize<S: ::serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> ::serde::Deserialize<'de> for $type {
            fn deserialize<D: ::serde::Deserializer<'de>>(
                deserializer: D,
            ) -> Result<Self, D::Error> {
                $crate::text::deserialize(deserializer)
            }
        }

        #[cfg(feature = "schemars")]
        impl ::schemars::JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> ::std::borrow::Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(_: &mut ::schemars::SchemaGenerator) -> ::schemars::Schema {
                ::schemars::json_schema!({ "type": "string", "pattern": $pattern })
            }
        }
    };
}
