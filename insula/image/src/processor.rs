//! Features of processors, which a kernel that has booted relies on.
//!
//! Sources: Intel SDM volume 2, "CPUID"; AMD APM volume 3, appendix E.

use core::arch::x86_64::{__cpuid, __cpuid_count};

use serde::{Deserialize, Serialize};

/// Leaves and subleaves with features, and their bits in EAX, EBX, ECX and EDX: not those that tell of
/// the core, or of what its kernel has enabled.
const LEAVES: [(u32, u32, [u32; 4]); 7] = [
    (0x1, 0, [0, 0, !(1 << 27 | 1 << 31), u32::MAX]),
    (0x7, 0, [0, u32::MAX, !(1 << 4), u32::MAX]),
    (0x7, 1, [u32::MAX, 0, 0, 0]),
    // States that XSAVE saves, and its forms.
    (0xd, 0, [u32::MAX, 0, 0, u32::MAX]),
    (0xd, 1, [0x1f, 0, 0, 0]),
    (0x8000_0001, 0, [0, 0, u32::MAX, u32::MAX]),
    (0x8000_0008, 0, [0, u32::MAX, 0, 0]),
];

/// What a kernel relies on: the processors' vendor, their features, and the pace of their counter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Processor {
    /// The vendor, in 12 letters.
    pub vendor: String,
    /// Features: four words for each leaf.
    pub features: Vec<[u32; 4]>,
    /// Frequency of the time stamp counter in kHz.
    pub tsc_khz: u32,
}

/// Why a kernel that relies on a processor cannot go on on another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsuitable {
    /// They are of another vendor.
    #[error("they are another vendor's")]
    Vendor,
    /// A feature is missing.
    #[error(
        "they lack a feature: CPUID leaf {leaf:#x}, subleaf {subleaf}, bits {bits:#x} of {register}"
    )]
    Feature {
        /// The leaf.
        leaf: u32,
        /// The subleaf.
        subleaf: u32,
        /// The register.
        register: &'static str,
        /// What is missing there.
        bits: u32,
    },
    /// Their time stamp counter has another pace.
    #[error("their time stamp counter runs at {0} kHz, not {1} kHz")]
    Pace(u32, u32),
}

impl Processor {
    /// The processor that this runs on, whose time stamp counter has this frequency.
    #[must_use]
    pub fn of_machine(tsc_khz: u32) -> Self {
        let name = __cpuid(0);
        let vendor = [name.ebx, name.edx, name.ecx]
            .map(u32::to_le_bytes)
            .concat();
        let last = |leaf: u32| __cpuid(leaf & 0x8000_0000).eax;
        let features = LEAVES.map(|(leaf, subleaf, bits)| {
            if last(leaf) < leaf {
                return [0; 4];
            }
            let found = __cpuid_count(leaf, subleaf);
            let words = [found.eax, found.ebx, found.ecx, found.edx];
            std::array::from_fn(|register| words[register] & bits[register])
        });
        Self {
            vendor: String::from_utf8_lossy(&vendor).into_owned(),
            features: features.to_vec(),
            tsc_khz,
        }
    }

    /// Whether a kernel that relies on `former` can go on on this one.
    ///
    /// # Errors
    /// The first reason why not.
    pub fn can_replace(&self, former: &Self) -> Result<(), Unsuitable> {
        if self.vendor != former.vendor || former.features.len() != LEAVES.len() {
            return Err(Unsuitable::Vendor);
        }
        let leaves = LEAVES.iter().zip(&former.features).zip(&self.features);
        for ((&(leaf, subleaf, _), wanted), found) in leaves {
            for (register, (wanted, found)) in REGISTERS.iter().zip(wanted.iter().zip(found)) {
                let bits = wanted & !found;
                if bits != 0 {
                    return Err(Unsuitable::Feature {
                        leaf,
                        subleaf,
                        register,
                        bits,
                    });
                }
            }
        }
        // Linux measures it anew at each boot, a little differently.
        match self.tsc_khz.abs_diff(former.tsc_khz) > former.tsc_khz / PACE_TOLERANCE {
            true => Err(Unsuitable::Pace(self.tsc_khz, former.tsc_khz)),
            false => Ok(()),
        }
    }
}

const REGISTERS: [&str; 4] = ["EAX", "EBX", "ECX", "EDX"];
/// Reciprocal of the relative difference of two frequencies that count as one.
const PACE_TOLERANCE: u32 = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_replaces_itself() {
        let this = Processor::of_machine(2_000_000);
        assert_eq!(this.can_replace(&this), Ok(()));
        let text = serde_json::to_string(&this).unwrap();
        assert_eq!(serde_json::from_str::<Processor>(&text).unwrap(), this);
    }

    #[test]
    fn more_is_no_harm_and_less_is_named() {
        let mut less = Processor::of_machine(2_000_000);
        let mut this = less.clone();
        less.features[1][1] = 0;
        this.features[1][1] = 1 << 5;
        assert_eq!(this.can_replace(&less), Ok(()));
        let missing = less.can_replace(&this).unwrap_err();
        let text = "they lack a feature: CPUID leaf 0x7, subleaf 0, bits 0x20 of EBX";
        assert_eq!(missing.to_string(), text);
    }

    #[test]
    fn vendor_and_pace_count() {
        let this = Processor::of_machine(2_000_000);
        let changed = |change: fn(&mut Processor)| {
            let mut other = this.clone();
            change(&mut other);
            this.can_replace(&other)
        };
        assert_eq!(changed(|one| one.vendor.clear()), Err(Unsuitable::Vendor));
        assert_eq!(changed(|one| one.features.clear()), Err(Unsuitable::Vendor));
        assert_eq!(changed(|one| one.tsc_khz += 1000), Ok(()));
        assert!(changed(|one| one.tsc_khz += 10_000).is_err());
    }
}
