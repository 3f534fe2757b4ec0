//! The node's power button, which the base presses.
//!
//! The button is an interrupt without a line. Its I/O APIC input is the only one that a node's
//! kernel sets up, and as the I/O APIC is plain memory (see `io_apic.rs`), the last value written
//! can be read: the lower half of the input's redirection entry, with the vector that the kernel
//! expects. The base sends that vector to the node's first core, to which `irqaffinity=0` binds it.
//!
//! Source: Intel 82093AA datasheet, section 3.2.4 "I/O redirection table".

/// The input and global system interrupt: the first after the ISA ones.
pub(crate) const INPUT: u32 = 16;

/// Vector bits of the redirection entry.
const VECTOR: u32 = 0xff;
/// Delivery mode; 0 is "fixed", the only one in use.
const DELIVERY_MODE: u32 = 0x700;
/// Mask bit.
const MASKED: u32 = 1 << 16;
/// Reserved bits of the lower half.
const RESERVED: u32 = 0xfffe_0000;
/// Lower vectors are exceptions.
const VECTOR_MIN: u32 = 0x20;

/// The vector to send to the node's first core, from the word at
/// [`Layout::power_button`](crate::Layout::power_button); `None` if the node's kernel does not
/// handle the button. The word is not trusted.
pub fn vector(word: u32) -> Option<u8> {
    let vector = word & VECTOR;
    let waiting = word & (MASKED | RESERVED | DELIVERY_MODE) == 0 && vector >= VECTOR_MIN;
    waiting.then_some(vector as u8)
}

#[cfg(test)]
mod tests {
    use super::vector;

    #[test]
    fn there_is_no_vector_at_start_or_when_masked() {
        assert_eq!(vector(0x0017_0020), None);
        assert_eq!(vector(0x0001_0021), None);
        assert_eq!(vector(0), None);
    }

    #[test]
    fn an_unmasked_entry_has_a_vector() {
        assert_eq!(vector(0x21), Some(0x21));
        assert_eq!(
            vector(0x0000_08ef),
            Some(0xef),
            "destination mode does not matter"
        );
    }

    #[test]
    fn invalid_entries_are_ignored() {
        assert_eq!(vector(0x0000_0421), None, "NMI");
        assert_eq!(vector(0x0000_000e), None, "an exception's vector");
        assert_eq!(vector(0x8000_0021), None);
    }
}
