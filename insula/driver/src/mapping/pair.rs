//! Exchanging two words at once.

use std::arch::asm;

use super::{Mapping, OutOfRange};

/// Size of two words, in bytes.
const PAIR: usize = size_of::<u128>();

impl Mapping {
    /// Exchanges the 16 bytes at an offset, little-endian, if they are `before`: in one step for
    /// every core. Whether they were.
    ///
    /// # Errors
    /// [`OutOfRange`] when they are not all in the object, are not aligned to their size, or the
    /// object is mapped for reading.
    pub fn exchange_pair(
        &self,
        offset: u64,
        before: u128,
        after: u128,
    ) -> Result<bool, OutOfRange> {
        let at = self.writable(offset, PAIR)?.cast::<u128>();
        if !at.is_aligned() || !is_x86_feature_detected!("cmpxchg16b") {
            return Err(OutOfRange {
                at: offset,
                size: PAIR as u64,
            });
        }
        // SAFETY: 1. `at` is valid for 16 bytes (`pointer`), aligned and writable. 2. It is only
        // accessed atomically or volatilely. 3. The processor has the instruction.
        Ok(unsafe { compare_exchange(at, before, after) } == before)
    }
}

/// Exchanges 16 bytes if they are `before`; what they were. (`cmpxchg16b` of the standard library
/// does not link unless the whole program is built for processors that have it.)
///
/// # Safety
/// `at` is valid for reads and writes and aligned, and the processor has `CMPXCHG16B`.
unsafe fn compare_exchange(at: *mut u128, before: u128, after: u128) -> u128 {
    let halves = |both: u128| (both as u64, (both >> u64::BITS) as u64);
    let ((mut low, mut high), (new_low, new_high)) = (halves(before), halves(after));
    // SAFETY: as above. RBX, which the compiler reserves, is what it was afterwards.
    unsafe {
        asm!(
            "xchg {new_low}, rbx",
            "lock cmpxchg16b xmmword ptr [rdi]",
            "mov rbx, {new_low}",
            new_low = inout(reg) new_low => _,
            in("rcx") new_high,
            in("rdi") at,
            inout("rax") low,
            inout("rdx") high,
            options(nostack),
        );
    }
    u128::from(low) | u128::from(high) << u64::BITS
}

#[cfg(test)]
mod tests {
    use super::super::tests::mapping;

    #[test]
    fn a_pair_is_exchanged_only_if_it_is_as_expected() {
        let mut mapping = mapping();
        mapping.write(32, &7_u128.to_le_bytes()).unwrap();
        assert_eq!(mapping.exchange_pair(32, 8, 9), Ok(false));
        assert_eq!(mapping.exchange_pair(32, 7, 1 << 100), Ok(true));
        let mut bytes = [0; 16];
        mapping.read(32, &mut bytes).unwrap();
        assert_eq!(u128::from_le_bytes(bytes), 1 << 100);
        assert!(mapping.exchange_pair(24, 0, 0).is_err());
        assert!(mapping.exchange_pair(mapping.size(), 0, 0).is_err());
    }
}
