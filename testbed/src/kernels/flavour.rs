//! The names of Debian's kernels.

use std::fmt;
use std::str::FromStr;

/// One of Debian 12's kernels for this architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flavour {
    /// 6.1, for virtual machines.
    V6_1,
    /// 6.12, for virtual machines.
    V6_12,
    /// 6.1, for any machine.
    V6_1Generic,
    /// 6.12, for any machine.
    V6_12Generic,
}

/// The text names no kernel.
#[derive(Debug, thiserror::Error)]
#[error("no kernel is called `{0}`; there are 6.1, 6.12, 6.1-generic and 6.12-generic")]
pub struct UnknownFlavour(String);

impl Flavour {
    /// Those that everything is tested on.
    pub const USUAL: [Self; 2] = [Self::V6_1, Self::V6_12];
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::V6_1,
        Self::V6_12,
        Self::V6_1Generic,
        Self::V6_12Generic,
    ];

    /// The short name: what users type, and the name of its folder.
    pub fn name(self) -> &'static str {
        match self {
            Self::V6_1 => "6.1",
            Self::V6_12 => "6.12",
            Self::V6_1Generic => "6.1-generic",
            Self::V6_12Generic => "6.12-generic",
        }
    }

    /// The package that depends on the newest kernel of the kind.
    pub(super) fn meta_package(self) -> &'static str {
        match self {
            Self::V6_1 => "linux-image-cloud-amd64",
            Self::V6_12 => "linux-image-6.12-cloud-amd64",
            Self::V6_1Generic => "linux-image-amd64",
            Self::V6_12Generic => "linux-image-6.12-amd64",
        }
    }
}

impl fmt::Display for Flavour {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FromStr for Flavour {
    type Err = UnknownFlavour;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|flavour| flavour.name() == text);
        found.ok_or_else(|| UnknownFlavour(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back() {
        for flavour in Flavour::ALL {
            assert_eq!(flavour.name().parse::<Flavour>().unwrap(), flavour);
        }
        assert!("6.2".parse::<Flavour>().is_err());
    }
}
