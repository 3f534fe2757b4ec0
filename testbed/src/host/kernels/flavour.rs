//! Names of the kernels.

use std::fmt;
use std::str::FromStr;

/// One of Debian 12's kernels for this architecture, one built from its source, or the newest one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Flavour {
    /// 6.1, for virtual machines.
    V6_1,
    /// 6.12, for virtual machines.
    V6_12,
    /// 6.1, for any machine.
    V6_1Generic,
    /// 6.12, for any machine.
    V6_12Generic,
    /// 6.1 with KASAN and lockdep.
    V6_1Kasan,
    /// 6.12 with KASAN and lockdep.
    V6_12Kasan,
    /// 6.12 with KCSAN and lockdep.
    V6_12Kcsan,
    /// Debian unstable's, for virtual machines.
    Unstable,
}

/// Sanitizer of a kernel that is built here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sanitizer {
    /// KASAN: memory used after free or out of bounds; and lockdep: lock orders and contexts that
    /// can deadlock.
    Memory,
    /// KCSAN: data races; and lockdep.
    Races,
}

impl Sanitizer {
    /// End of its kernels' releases, and name of its configuration.
    #[must_use]
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Memory => "kasan",
            Self::Races => "kcsan",
        }
    }

    /// Memory of a machine on which a scenario is to find as much free as with another kernel:
    /// shadow memory takes an eighth, and freed memory stays quarantined for a while.
    #[must_use]
    pub fn memory_mib(self, memory_mib: u64) -> u64 {
        match self {
            Self::Memory => memory_mib + memory_mib / 4 + 512,
            Self::Races => memory_mib + 512,
        }
    }

    /// Factor by which a scenario may take longer.
    #[must_use]
    pub fn slowness(self) -> u32 {
        match self {
            Self::Memory => 5,
            Self::Races => 10,
        }
    }

    /// Sanitizer of the kernel with that `uname -r`, if it has one.
    #[must_use]
    pub fn of_release(release: &str) -> Option<Self> {
        let has = |sanitizer: &Self| release.ends_with(&format!("-{}", sanitizer.suffix()));
        [Self::Memory, Self::Races].into_iter().find(has)
    }
}

/// The text names no kernel.
#[derive(Debug, thiserror::Error)]
#[error(
    "no kernel is called `{0}`; there are 6.1, 6.12, 6.1-generic, 6.12-generic, unstable, and, to be \
     built in some ten minutes each, 6.1-kasan, 6.12-kasan and 6.12-kcsan"
)]
pub struct UnknownFlavour(String);

impl Flavour {
    /// Kernels that everything is tested on.
    pub const USUAL: [Self; 2] = [Self::V6_1, Self::V6_12];
    /// All of Debian 12's kernels.
    pub const ALL: [Self; 4] = [
        Self::V6_1,
        Self::V6_12,
        Self::V6_1Generic,
        Self::V6_12Generic,
    ];
    /// Kernels that are built here.
    pub const BUILT: [Self; 3] = [Self::V6_1Kasan, Self::V6_12Kasan, Self::V6_12Kcsan];

    /// Short name: what users type, and the name of its folder.
    pub fn name(self) -> &'static str {
        match self {
            Self::V6_1 => "6.1",
            Self::V6_12 => "6.12",
            Self::V6_1Generic => "6.1-generic",
            Self::V6_12Generic => "6.12-generic",
            Self::V6_1Kasan => "6.1-kasan",
            Self::V6_12Kasan => "6.12-kasan",
            Self::V6_12Kcsan => "6.12-kcsan",
            Self::Unstable => "unstable",
        }
    }

    /// Its sanitizer, if it is a kernel that is built here.
    #[must_use]
    pub fn sanitizer(self) -> Option<Sanitizer> {
        match self {
            Self::V6_1 | Self::V6_12 | Self::V6_1Generic | Self::V6_12Generic | Self::Unstable => {
                None
            }
            Self::V6_1Kasan | Self::V6_12Kasan => Some(Sanitizer::Memory),
            Self::V6_12Kcsan => Some(Sanitizer::Races),
        }
    }

    /// Package to fetch it by: one that depends on the newest kernel of the kind, or the source
    /// that it is built from.
    pub(super) fn package(self) -> &'static str {
        match self {
            Self::V6_1 | Self::Unstable => "linux-image-cloud-amd64",
            Self::V6_12 => "linux-image-6.12-cloud-amd64",
            Self::V6_1Generic => "linux-image-amd64",
            Self::V6_12Generic => "linux-image-6.12-amd64",
            Self::V6_1Kasan => "linux-source-6.1",
            Self::V6_12Kasan | Self::V6_12Kcsan => "linux-source-6.12",
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
        let all = Self::ALL.into_iter().chain(Self::BUILT);
        let mut all = all.chain([Self::Unstable]);
        let found = all.find(|flavour| flavour.name() == text);
        found.ok_or_else(|| UnknownFlavour(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back() {
        for flavour in Flavour::ALL.into_iter().chain(Flavour::BUILT) {
            assert_eq!(flavour.name().parse::<Flavour>().unwrap(), flavour);
        }
        assert!("6.2".parse::<Flavour>().is_err());
    }

    #[test]
    fn sanitizers_are_known_by_names_and_releases() {
        for flavour in Flavour::BUILT {
            let sanitizer = flavour.sanitizer().unwrap();
            assert!(flavour.name().ends_with(sanitizer.suffix()));
            let release = format!("6.12.1-{}", sanitizer.suffix());
            assert_eq!(Sanitizer::of_release(&release), Some(sanitizer));
        }
        assert_eq!(Sanitizer::of_release("6.12.117+deb12-cloud-amd64"), None);
        assert!(
            Flavour::ALL
                .iter()
                .all(|flavour| flavour.sanitizer().is_none())
        );
    }
}
