//! XCR0: the states of the processor that programs use.
//!
//! Writing an invalid value faults, in the monitor as in the guest: so it is checked first.
//!
//! Source: Intel SDM volume 1, 13.3 "Enabling the XSAVE Feature Set and XSAVE-Enabled Features".

/// x87, which is always enabled.
const X87: u64 = 1 << 0;
const SSE: u64 = 1 << 1;
const AVX: u64 = 1 << 2;
/// Bounds: both registers and configuration, or neither.
const MPX: u64 = 3 << 3;
/// Masks and both halves of the registers, or none; with AVX.
const AVX512: u64 = 7 << 5;
/// Tiles: both configuration and data, or neither.
const AMX: u64 = 3 << 17;

/// Whether a processor that supports some states accepts a value.
#[must_use]
pub fn is_valid(value: u64, supported: u64) -> bool {
    let all_or_none = |group: u64| value & group == 0 || value & group == group;
    value & !supported == 0
        && value & X87 != 0
        && (value & AVX == 0 || value & SSE != 0)
        && all_or_none(MPX)
        && all_or_none(AVX512)
        && (value & AVX512 == 0 || value & AVX != 0)
        && all_or_none(AMX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUPPORTED: u64 = X87 | SSE | AVX | MPX | AVX512 | AMX;

    #[test]
    fn what_kernels_enable_is_valid() {
        for value in [X87, X87 | SSE, X87 | SSE | AVX, SUPPORTED, SUPPORTED & !MPX] {
            assert!(is_valid(value, SUPPORTED), "{value:#x}");
        }
    }

    #[test]
    fn what_would_fault_is_not() {
        let half = |group: u64| SUPPORTED & !(group & group.wrapping_neg());
        for value in [
            0,
            SSE,
            X87 | AVX,
            half(MPX),
            half(AVX512),
            SUPPORTED & !AVX,
            half(AMX),
            SUPPORTED | 1 << 9,
            u64::MAX,
        ] {
            assert!(!is_valid(value, SUPPORTED), "{value:#x}");
        }
        assert!(!is_valid(X87 | SSE | AVX, X87 | SSE));
    }
}
