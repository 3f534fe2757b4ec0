//! Forms of values in files.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::value::{SeqAccessDeserializer, StrDeserializer};
use serde::de::{Deserializer, Error, SeqAccess, Visitor};

/// Reads one value, written as a string, or a list of them.
///
/// # Errors
/// Those of the deserializer and of the values.
pub(super) fn one_or_many<'de, T, D>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    deserializer.deserialize_any(OneOrMany(PhantomData))
}

/// One value, or a list of them.
pub(super) struct OneOrMany<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for OneOrMany<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string or a list of strings")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Vec<T>, E> {
        Ok(vec![T::deserialize(StrDeserializer::new(text))?])
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Vec<T>, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(list))
    }
}

/// The words of a program's command line: strings, or bytes where they are not UTF-8.
pub(super) mod words {
    use std::ffi::OsString;
    use std::os::unix::ffi::{OsStrExt, OsStringExt};

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Deserialize, Serialize)]
    #[serde(untagged)]
    enum Word {
        Text(String),
        Bytes(Vec<u8>),
    }

    pub(in super::super) fn serialize<S: Serializer>(
        words: &Option<Vec<OsString>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let word = |word: &OsString| match word.to_str() {
            Some(text) => Word::Text(text.to_owned()),
            None => Word::Bytes(word.as_bytes().to_owned()),
        };
        let words = words.as_ref();
        words
            .map(|words| words.iter().map(word).collect::<Vec<_>>())
            .serialize(serializer)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Vec<OsString>>, D::Error> {
        let word = |word| match word {
            Word::Text(text) => OsString::from(text),
            Word::Bytes(bytes) => OsString::from_vec(bytes),
        };
        let words = Option::<Vec<Word>>::deserialize(deserializer)?;
        Ok(words.map(|words| words.into_iter().map(word).collect()))
    }
}

#[cfg(feature = "schemars")]
mod schema {
    use std::borrow::Cow;

    use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

    use super::OneOrMany;

    impl<T: JsonSchema> JsonSchema for OneOrMany<T> {
        fn inline_schema() -> bool {
            true
        }

        fn schema_name() -> Cow<'static, str> {
            format!("OneOrMany{}", T::schema_name()).into()
        }

        fn json_schema(generator: &mut SchemaGenerator) -> Schema {
            let one = generator.subschema_for::<T>();
            json_schema!({ "anyOf": [one, { "type": "array", "items": one, "minItems": 1 }] })
        }
    }

    /// Whether something is had, or the name of what is.
    pub(in super::super) struct BoolOrName;

    impl JsonSchema for BoolOrName {
        fn inline_schema() -> bool {
            true
        }

        fn schema_name() -> Cow<'static, str> {
            "BoolOrName".into()
        }

        fn json_schema(generator: &mut SchemaGenerator) -> Schema {
            let name = generator.subschema_for::<insula_driver::name::Name>();
            json_schema!({ "anyOf": [{ "type": "boolean" }, name] })
        }
    }

    /// An IPv4 address.
    pub(in super::super) struct Address;

    impl JsonSchema for Address {
        fn inline_schema() -> bool {
            true
        }

        fn schema_name() -> Cow<'static, str> {
            "Address".into()
        }

        fn json_schema(_: &mut SchemaGenerator) -> Schema {
            json_schema!({ "type": "string", "pattern": "^[0-9]{1,3}(\\.[0-9]{1,3}){3}$" })
        }
    }
}

#[cfg(feature = "schemars")]
pub(super) use schema::{Address, BoolOrName};
