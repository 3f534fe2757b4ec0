//! Where the proxy goes in the addresses of a process.

use insula_abi::lwk::PAGE_SIZE;
use insula_abi::running::Vma;
use insula_driver::{OtherProxy, RegionLayout};

/// Where usual programs have nothing, above what is near their code and below what is near their
/// stack: there the proxy is in the way of no program that they execute later either.
const PREFERRED: u64 = 0x6800_0000_0000;

/// Lays the proxy out, with free addresses for the state right before it. `None`: there is no room.
pub(crate) fn place(vmas: &[Vma], state_size: usize) -> Option<RegionLayout> {
    let state = (state_size as u64)
        .next_multiple_of(PAGE_SIZE)
        .max(PAGE_SIZE);
    let size = RegionLayout::new(0, state_size).size() + state;
    let start = match holes(vmas).find(|&(start, end)| holds((start, end), (PREFERRED, size))) {
        Some(_) => PREFERRED,
        None => {
            let largest = holes(vmas).max_by_key(|(start, end)| end - start);
            let (start, end) = largest.filter(|(start, end)| end - start >= size)?;
            // In its middle: both neighbours may grow.
            (start + (end - start - size) / 2) & !(PAGE_SIZE - 1)
        }
    };
    Some(RegionLayout::new(start + state, state_size))
}

/// Address at which the state may be copied, right before the proxy.
pub(crate) fn state_address(region: &RegionLayout, state_size: usize) -> u64 {
    let state = (state_size as u64)
        .next_multiple_of(PAGE_SIZE)
        .max(PAGE_SIZE);
    region.address() - state
}

fn holds((start, end): (u64, u64), (at, size): (u64, u64)) -> bool {
    start <= at && at + size <= end
}

/// The ranges without a mapping.
fn holes(vmas: &[Vma]) -> impl Iterator<Item = (u64, u64)> + '_ {
    let program = OtherProxy::program();
    let starts = std::iter::once(program.start).chain(vmas.iter().map(|vma| vma.end));
    let ends = vmas.iter().map(|vma| vma.start).chain([program.end]);
    starts.zip(ends).filter(|(start, end)| start < end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vma(start: u64, end: u64) -> Vma {
        Vma {
            start,
            end,
            ..Default::default()
        }
    }

    #[test]
    fn the_proxy_goes_where_nothing_is() {
        let usual = [
            vma(0x5555_0000_0000, 0x5556_0000_0000),
            vma(0x7fff_0000_0000, 0x7fff_1000_0000),
        ];
        let region = place(&usual, 5000).unwrap();
        assert_eq!(state_address(&region, 5000), PREFERRED);
        assert_eq!(region.address(), PREFERRED + 2 * PAGE_SIZE);
        // Something is in its way.
        let unusual = [vma(PREFERRED + PAGE_SIZE, 0x7fff_ffff_f000)];
        let region = place(&unusual, 5000).unwrap();
        assert!(region.end() < PREFERRED && region.address() > 0x1_0000);
        assert_eq!(region.address() % PAGE_SIZE, 0);
        let full = [vma(0x1_0000, PREFERRED), vma(PREFERRED, 0x7fff_0000_0000)];
        assert_eq!(place(&full, 5000), None);
    }
}
