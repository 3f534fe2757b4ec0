//! Parsing and formatting of sizes, physical addresses and lists of cores.

use std::fmt;
use std::str::FromStr;

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Largest core number in a list: far above Linux' own limit.
const CPU_MAX: u32 = 65_535;

/// Why a text is not a size or an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a size: give a number of bytes, or one with K, M, G or T, such as 512M")]
pub struct SizeError(String);

/// A number of bytes: `4096`, `0x1000`, `512M`, `2GiB`. Units are powers of 1024.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

impl FromStr for Size {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        parse_size(text)
            .map(Self)
            .ok_or_else(|| SizeError(text.to_owned()))
    }
}

fn parse_size(text: &str) -> Option<u64> {
    if let Some(hex) = text.strip_prefix("0x") {
        return u64::from_str_radix(hex, 16)
            .ok()
            .filter(|_| !hex.starts_with('+'));
    }
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "ki" | "kib" | "kb" => 10,
        "m" | "mi" | "mib" | "mb" => 20,
        "g" | "gi" | "gib" | "gb" => 30,
        "t" | "ti" | "tib" | "tb" => 40,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

impl fmt::Display for Size {
    /// The shortest form with at most one decimal, rounded if necessary: `512M`, `1.5G`, `28K`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(40, "T"), (30, "G"), (20, "M"), (10, "K")];
        let Some(&(shift, unit)) = units.iter().find(|(shift, _)| self.0 >> shift > 0) else {
            return f.pad(&self.0.to_string());
        };
        // u128: ten times a size may not fit in 64 bits.
        let tenths = ((u128::from(self.0) * 10) + (1 << (shift - 1))) >> shift;
        let text = match tenths % 10 {
            0 => format!("{}{unit}", tenths / 10),
            rest => format!("{}.{rest}{unit}", tenths / 10),
        };
        f.pad(&text)
    }
}

impl Size {
    /// The size in the largest unit that divides it: `1536M`, which reads back as the same size.
    #[must_use]
    pub fn exact(self) -> String {
        let units = [(40, "T"), (30, "G"), (20, "M"), (10, "K")];
        let divides = |&&(shift, _): &&(u32, &str)| self.0.trailing_zeros() >= shift;
        match units.iter().find(divides).filter(|_| self.0 > 0) {
            Some((shift, unit)) => format!("{}{unit}", self.0 >> shift),
            None => self.0.to_string(),
        }
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

impl From<Size> for u64 {
    fn from(size: Size) -> Self {
        size.0
    }
}

/// A change of a number: `+1`, `-256M`, or the new value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<T> {
    /// Increase by this.
    More(T),
    /// Decrease by this.
    Fewer(T),
    /// Set to this.
    To(T),
}

impl<T: FromStr> FromStr for Change<T> {
    type Err = T::Err;

    fn from_str(text: &str) -> Result<Self, T::Err> {
        match (text.strip_prefix('+'), text.strip_prefix('-')) {
            (Some(more), _) => more.parse().map(Self::More),
            (_, Some(fewer)) => fewer.parse().map(Self::Fewer),
            _ => text.parse().map(Self::To),
        }
    }
}

impl<T: Into<u64>> Change<T> {
    /// Applies the change to `now`; `None` when the result overflows or is negative.
    #[must_use]
    pub fn apply(self, now: u64) -> Option<u64> {
        match self {
            Self::More(more) => now.checked_add(more.into()),
            Self::Fewer(fewer) => now.checked_sub(fewer.into()),
            Self::To(then) => Some(then.into()),
        }
    }
}

/// Why a text is not a list of cores.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a list of cores: give numbers and ranges, such as 2,4-6")]
pub struct CpuListError(String);

/// Core numbers in the order given, duplicates kept: `2,4-6`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuList(pub Vec<u32>);

impl FromStr for CpuList {
    type Err = CpuListError;

    fn from_str(text: &str) -> Result<Self, CpuListError> {
        let ranges: Option<Vec<_>> = text.trim().split(',').map(parse_range).collect();
        let ranges = ranges.ok_or_else(|| CpuListError(text.to_owned()))?;
        Ok(Self(ranges.into_iter().flatten().collect()))
    }
}

fn parse_range(text: &str) -> Option<std::ops::RangeInclusive<u32>> {
    let number = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse()
            .ok()
            .filter(|&number| digits && number <= CPU_MAX)
    };
    match text.split_once('-') {
        None => number(text).map(|only| only..=only),
        Some((first, last)) => {
            let range = number(first)?..=number(last)?;
            (!range.is_empty()).then_some(range)
        }
    }
}

impl fmt::Display for CpuList {
    /// Ascending runs become ranges; order and duplicates are kept. An empty list is `-`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs = self
            .0
            .chunk_by(|left, right| left.checked_add(1) == Some(*right));
        let texts: Vec<_> = runs
            .map(|run| match run {
                [first, .., last] => format!("{first}-{last}"),
                _ => run.iter().map(u32::to_string).collect(),
            })
            .collect();
        f.pad(
            if texts.is_empty() {
                "-".to_owned()
            } else {
                texts.join(",")
            }
            .as_str(),
        )
    }
}

impl Serialize for CpuList {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for CpuList {
    /// Reads the text, or a list of numbers.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(CpuListVisitor)
    }
}

struct CpuListVisitor;

impl<'de> Visitor<'de> for CpuListVisitor {
    type Value = CpuList;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of cores, such as \"2,4-6\"")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<CpuList, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<CpuList, A::Error> {
        let mut numbers = Vec::new();
        while let Some(number) = list.next_element()? {
            numbers.push(number);
        }
        Ok(CpuList(numbers))
    }
}

#[cfg(feature = "schemars")]
impl schemars::JsonSchema for CpuList {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "CpuList".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let numbers = schemars::json_schema!({
            "type": "array",
            "items": { "type": "integer", "minimum": 0 },
        });
        if generator.contract().is_serialize() {
            return numbers;
        }
        let text = "^[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*$";
        schemars::json_schema!({
            "anyOf": [
                { "type": "string", "pattern": text },
                { "type": "array", "items": { "type": "integer", "minimum": 0 }, "minItems": 1 },
            ]
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn size(text: &str) -> Option<u64> {
        text.parse::<Size>().ok().map(|size| size.0)
    }

    #[test]
    fn sizes() {
        assert_eq!(size("4096"), Some(4096));
        assert_eq!(size("0x1000"), Some(4096));
        assert_eq!(size("512M"), Some(512 << 20));
        assert_eq!(size("2GiB"), Some(2 << 30));
        assert_eq!(size("1t"), Some(1 << 40));
        for bad in [
            "",
            "M",
            "-1",
            "+1",
            "1.5G",
            "12Q",
            "0x",
            "0x+1",
            "99999999999999T",
            " 1",
        ] {
            assert_eq!(size(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn sizes_are_written_short() {
        let written = [
            0,
            900,
            28 << 10,
            512 << 20,
            1536 << 20,
            (1 << 30) + (50 << 20),
            u64::MAX,
        ];
        let texts: Vec<_> = written.map(|size| Size(size).to_string()).into();
        assert_eq!(
            texts,
            ["0", "900", "28K", "512M", "1.5G", "1G", "16777216T"]
        );
    }

    #[test]
    fn changes() {
        let apply = |text: &str| text.parse::<Change<Size>>().unwrap().apply(1 << 20);
        assert_eq!(apply("+1M"), Some(2 << 20));
        assert_eq!(apply("-1M"), Some(0));
        assert_eq!(apply("3M"), Some(3 << 20));
        assert_eq!(apply("-2M"), None);
        assert_eq!(apply("+18446744073709551615"), None);
        for bad in ["", "+", "-", "x", "+x"] {
            assert!(bad.parse::<Change<u32>>().is_err(), "{bad:?}");
            assert!(bad.parse::<Change<Size>>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn lists() {
        assert_eq!("2,4-6".parse(), Ok(CpuList(vec![2, 4, 5, 6])));
        assert_eq!("6,4".parse(), Ok(CpuList(vec![6, 4])));
        assert_eq!("1-2,2".parse(), Ok(CpuList(vec![1, 2, 2])));
        for bad in [
            "",
            ",",
            "1,",
            "a",
            "3-1",
            "1--2",
            "-1",
            "+1",
            "0-4294967295",
            "1 2",
        ] {
            assert!(bad.parse::<CpuList>().is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in ".{0,24}") {
            let _ = text.parse::<Size>();
            let _ = text.parse::<CpuList>();
        }

        #[test]
        fn a_list_survives_being_written(cpus in proptest::collection::vec(0_u32..300, 1..20)) {
            let list = CpuList(cpus);
            prop_assert_eq!(list.to_string().parse(), Ok(list));
        }
    }
}
