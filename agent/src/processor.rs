//! What of the processor the programs of a node can use. A program finds it out once, as its C library
//! does when it starts, and uses it from then on: where it goes on, there must not be less.
//!
//! Sources: Intel SDM volume 2, "CPUID", and volume 1, "XSAVE-managed state"; AMD APM volume 3,
//! appendix E. Names are those of `/proc/cpuinfo`.

use core::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};

use serde::{Deserialize, Serialize};

/// Registers of an answer, by their index.
const EAX: usize = 0;
const EBX: usize = 1;
const ECX: usize = 2;
const EDX: usize = 3;

/// Features that a register tells of: leaf, subleaf, register, and their names with their bits.
type Word = (u32, u32, usize, &'static [(u8, &'static str)]);

/// Features that programs use.
const FEATURES: [Word; 8] = [
    (
        1,
        0,
        ECX,
        &[
            (0, "pni"),
            (1, "pclmulqdq"),
            (9, "ssse3"),
            (12, "fma"),
            (13, "cx16"),
            (19, "sse4_1"),
            (20, "sse4_2"),
            (22, "movbe"),
            (23, "popcnt"),
            (25, "aes"),
            (26, "xsave"),
            // The kernel has enabled it.
            (27, "osxsave"),
            (28, "avx"),
            (29, "f16c"),
            (30, "rdrand"),
        ],
    ),
    (
        1,
        0,
        EDX,
        &[
            (15, "cmov"),
            (23, "mmx"),
            (24, "fxsr"),
            (25, "sse"),
            (26, "sse2"),
        ],
    ),
    (
        7,
        0,
        EBX,
        &[
            (0, "fsgsbase"),
            (3, "bmi1"),
            (4, "hle"),
            (5, "avx2"),
            (8, "bmi2"),
            (9, "erms"),
            (11, "rtm"),
            (14, "mpx"),
            (16, "avx512f"),
            (17, "avx512dq"),
            (18, "rdseed"),
            (19, "adx"),
            (21, "avx512ifma"),
            (23, "clflushopt"),
            (24, "clwb"),
            (26, "avx512pf"),
            (27, "avx512er"),
            (28, "avx512cd"),
            (29, "sha_ni"),
            (30, "avx512bw"),
            (31, "avx512vl"),
        ],
    ),
    (
        7,
        0,
        ECX,
        &[
            (1, "avx512vbmi"),
            (4, "ospke"),
            (5, "waitpkg"),
            (6, "avx512_vbmi2"),
            (8, "gfni"),
            (9, "vaes"),
            (10, "vpclmulqdq"),
            (11, "avx512_vnni"),
            (12, "avx512_bitalg"),
            (14, "avx512_vpopcntdq"),
            (22, "rdpid"),
            (27, "movdiri"),
            (28, "movdir64b"),
        ],
    ),
    (
        7,
        0,
        EDX,
        &[
            (2, "avx512_4vnniw"),
            (3, "avx512_4fmaps"),
            (4, "fsrm"),
            (8, "avx512_vp2intersect"),
            (22, "amx_bf16"),
            (23, "avx512_fp16"),
            (24, "amx_tile"),
            (25, "amx_int8"),
        ],
    ),
    (
        7,
        1,
        EAX,
        &[(4, "avx_vnni"), (5, "avx512_bf16"), (23, "avx_ifma")],
    ),
    (
        0xd,
        1,
        EAX,
        &[(0, "xsaveopt"), (1, "xsavec"), (2, "xgetbv1")],
    ),
    (
        0x8000_0001,
        0,
        ECX,
        &[
            (0, "lahf_lm"),
            (5, "abm"),
            (6, "sse4a"),
            (8, "3dnowprefetch"),
            (11, "xop"),
            (16, "fma4"),
            (21, "tbm"),
        ],
    ),
];

/// States of a thread that its kernel saves, by their bits in XCR0.
const STATES: [(u8, &str); 10] = [
    (0, "x87"),
    (1, "SSE"),
    (2, "AVX"),
    (3, "MPX bounds"),
    (4, "MPX status"),
    (5, "AVX-512 opmask"),
    (6, "AVX-512 upper halves"),
    (7, "AVX-512 upper registers"),
    (9, "protection keys"),
    (18, "AMX tiles"),
];

/// The bit of [`STATES`] that tells that the kernel has enabled XSAVE.
const OSXSAVE: &str = "osxsave";

/// What programs can use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Processor {
    /// Names of features.
    features: Vec<String>,
    /// States that are saved: XCR0.
    states: u64,
}

impl Processor {
    /// That of this core, as this kernel has set it up.
    #[must_use]
    pub fn of_this() -> Self {
        let mut features = Vec::new();
        for (leaf, subleaf, register, named) in FEATURES {
            let word = word(leaf, subleaf, register);
            let found = named.iter().filter(|(bit, _)| word >> bit & 1 != 0);
            features.extend(found.map(|(_, name)| (*name).to_owned()));
        }
        let states = match features.iter().any(|one| one == OSXSAVE) {
            true => xcr0(),
            false => 0,
        };
        Self { features, states }
    }

    /// What programs that have used `former` miss here, by name.
    #[must_use]
    pub fn lacks(&self, former: &Self) -> Vec<String> {
        let missing = former.features.iter();
        let missing = missing.filter(|one| !self.features.contains(one));
        let mut lacks: Vec<_> = missing.cloned().collect();
        let states = former.states & !self.states;
        lacks.extend(
            (0..u64::BITS as u8)
                .filter(|bit| states >> bit & 1 != 0)
                .map(state),
        );
        lacks
    }
}

fn state(bit: u8) -> String {
    let known = STATES.iter().find(|(known, _)| *known == bit);
    known.map_or_else(
        || format!("state {bit} of XSAVE"),
        |(_, name)| format!("saved {name}"),
    )
}

fn word(leaf: u32, subleaf: u32, register: usize) -> u32 {
    if __cpuid(leaf & 0x8000_0000).eax < leaf {
        return 0;
    }
    let found = __cpuid_count(leaf, subleaf);
    [found.eax, found.ebx, found.ecx, found.edx][register]
}

#[allow(unsafe_code, reason = "the instruction has no safe name")]
fn xcr0() -> u64 {
    #[target_feature(enable = "xsave")]
    fn read() -> u64 {
        // SAFETY: register 0 exists wherever XSAVE is enabled.
        unsafe { _xgetbv(0) }
    }
    // SAFETY: the caller has seen that the kernel has enabled XSAVE.
    unsafe { read() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_one_lacks_nothing_of_itself_and_has_what_every_program_uses() {
        let this = Processor::of_this();
        assert_eq!(this.lacks(&this), Vec::<String>::new());
        assert!(this.features.iter().any(|one| one == "sse2"), "{this:?}");
    }

    #[test]
    fn less_is_named() {
        let of = |features: &[&str], states| Processor {
            features: features.iter().map(|&one| one.to_owned()).collect(),
            states,
        };
        let (less, more) = (
            of(&["sse2"], 3),
            of(&["sse2", "avx2"], 7 | 1 << 18 | 1 << 40),
        );
        let wanted = ["avx2", "saved AVX", "saved AMX tiles", "state 40 of XSAVE"];
        assert_eq!(less.lacks(&more), wanted);
        assert_eq!(more.lacks(&less), Vec::<String>::new());
    }
}
