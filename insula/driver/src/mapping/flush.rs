//! Writing what is in the caches to the memory.

use std::arch::x86_64::{_mm_clflush, _mm_mfence};

use super::{Mapping, OutOfRange};

/// Size of a cache line, in bytes.
const LINE: usize = 64;

impl Mapping {
    /// Has the bytes from an offset on be in the memory, not only in caches, before anything that this
    /// core does later.
    ///
    /// # Errors
    /// [`OutOfRange`] when they are not all in the object.
    pub(crate) fn flush(&self, offset: u64, size: usize) -> Result<(), OutOfRange> {
        let start = self.pointer(offset, size)?;
        // Each line has one of these.
        let last = size.checked_sub(1);
        let lines = (0..size).step_by(LINE).chain(last);
        for at in lines {
            // SAFETY: `at` is below `size`, so the byte is in the mapping (`pointer`); the instruction is in
            // each x86-64 processor and changes no value.
            unsafe { _mm_clflush(start.add(at)) };
        }
        // SAFETY: the instruction is in each x86-64 processor.
        unsafe { _mm_mfence() };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::mapping;

    #[test]
    fn what_was_flushed_is_still_there() {
        let mut mapping = mapping();
        mapping.write(3, &[7; 200]).unwrap();
        mapping.flush(3, 200).unwrap();
        mapping.flush(0, 0).unwrap();
        let mut back = [0; 200];
        mapping.read(3, &mut back).unwrap();
        assert_eq!(back, [7; 200]);
        assert!(mapping.flush(mapping.size() - 1, 2).is_err());
    }
}
