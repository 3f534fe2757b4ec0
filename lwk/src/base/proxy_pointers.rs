//! Arguments of delegated calls that point to the proxy's own memory.

use crate::model::vma;

/// Denies the program access to the proxy's own memory, which is above all addresses of the
/// program, or `region` in the middle of them: an argument that points there is made non-canonical,
/// so that a call that dereferences it fails with EFAULT. Other 64-bit numbers are unlikely to be in
/// these ranges.
pub(crate) fn mask_proxy_pointers(
    arguments: [u64; 6],
    (_, end): (u64, u64),
    region: (u64, u64),
) -> [u64; 6] {
    /// End of all user addresses.
    const NON_CANONICAL: u64 = 1 << 47;
    /// The last page below is never mapped.
    const TOP: u64 = NON_CANONICAL - vma::PAGE;
    let is_of_proxy =
        |argument| (end..TOP).contains(&argument) || (region.0..region.1).contains(&argument);
    arguments.map(|argument| match is_of_proxy(argument) {
        true => argument | NON_CANONICAL,
        false => argument,
    })
}

#[cfg(test)]
mod tests {
    use super::mask_proxy_pointers;

    #[test]
    fn pointers_to_the_proxy_are_invalid() {
        let bounds = (0x1_0000, 0x7fff_d000_0000);
        let top = 0x7fff_ffff_f000;
        let given = [0, bounds.1 - 1, bounds.1, top - 1, top, u64::MAX];
        let nowhere = [bounds.1, top - 1].map(|address| address + (1 << 47));
        let wanted = [0, bounds.1 - 1, nowhere[0], nowhere[1], top, u64::MAX];
        assert_eq!(mask_proxy_pointers(given, bounds, (0, 0)), wanted);
        let region = (0x6800_0000_0000, 0x6800_0000_1000);
        let given = [region.0 - 1, region.0, region.1 - 1, region.1, 0, 1];
        let mut wanted = given;
        wanted[1..3].iter_mut().for_each(|word| *word += 1 << 47);
        assert_eq!(mask_proxy_pointers(given, bounds, region), wanted);
    }
}
