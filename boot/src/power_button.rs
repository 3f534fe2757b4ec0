//! The node's power button: how the base presses it.
//!
//! The button is an interrupt that nothing is wired to. Its input at the I/O APIC is the only one that a node's
//! kernel ever sets up, and as the I/O APIC is plain memory (see `io_apic.rs`), what the kernel writes to it stays
//! to be read: last of all the lower half of the input's redirection entry, which names the vector that the kernel
//! waits for. The base sends just that vector to the node's first core, to which `irqaffinity=0` binds it.
//!
//! Source: Intel 82093AA datasheet, section 3.2.4 "I/O redirection table".

/// The input, which is also its number as a "global system interrupt": the first behind the ISA ones.
pub(crate) const INPUT: u32 = 16;

/// The redirection entry's bits that tell the vector.
const VECTOR: u32 = 0xff;
/// Its delivery mode; 0 is "fixed", the only one in use.
const DELIVERY_MODE: u32 = 0x700;
/// That the input is masked: nobody waits.
const MASKED: u32 = 1 << 16;
/// All that is reserved in this half.
const RESERVED: u32 = 0xfffe_0000;
/// Vectors below are the processor's exceptions.
const VECTOR_MIN: u32 = 0x20;

/// The vector to send to the node's first core, given the word at
/// [`Layout::power_button`](crate::Layout::power_button); `None` while the node's kernel does not wait for the
/// button. The node may write anything there.
pub fn vector(word: u32) -> Option<u8> {
    let vector = word & VECTOR;
    let waiting = word & (MASKED | RESERVED | DELIVERY_MODE) == 0 && vector >= VECTOR_MIN;
    waiting.then_some(vector as u8)
}

#[cfg(test)]
mod tests {
    use super::vector;

    #[test]
    fn nobody_waits_at_start_or_when_masked() {
        assert_eq!(vector(0x0017_0020), None);
        assert_eq!(vector(0x0001_0021), None);
        assert_eq!(vector(0), None);
    }

    #[test]
    fn an_unmasked_entry_names_its_vector() {
        assert_eq!(vector(0x21), Some(0x21));
        assert_eq!(
            vector(0x0000_08ef),
            Some(0xef),
            "destination mode does not matter"
        );
    }

    #[test]
    fn what_no_kernel_writes_is_not_followed() {
        assert_eq!(vector(0x0000_0421), None, "NMI");
        assert_eq!(vector(0x0000_000e), None, "an exception's vector");
        assert_eq!(vector(0x8000_0021), None);
    }
}
