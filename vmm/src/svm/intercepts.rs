//! What exits of a guest.

use super::vmcb::Intercepts;

/// What exits, but for IRET.
pub(super) fn intercepts(has_next_rip: bool) -> Intercepts {
    let mut exits = Intercepts::all() - Intercepts::IRET;
    // Their length varies. Processors without the next address are emulators, which have no caches.
    if !has_next_rip {
        exits -= Intercepts::WBINVD | Intercepts::INVD;
    }
    exits
}

/// What exits of a guest that was paused with these intercepts: they decide only about what changes while
/// a guest runs, as they may come from a file.
pub(super) fn resumed_intercepts(paused: u64, has_next_rip: bool) -> Intercepts {
    let changing = Intercepts::IRET | Intercepts::CPUID;
    (intercepts(has_next_rip) - changing) | (Intercepts::from_bits_truncate(paused) & changing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_ends_no_intercept_that_a_guest_keeps() {
        for has_next_rip in [false, true] {
            let fixed = intercepts(has_next_rip) - Intercepts::CPUID;
            assert_eq!(resumed_intercepts(0, has_next_rip), fixed);
            let all = resumed_intercepts(u64::MAX, has_next_rip);
            assert_eq!(all, fixed | Intercepts::CPUID | Intercepts::IRET);
        }
    }

    #[test]
    fn everything_dangerous_exits() {
        for has_next_rip in [false, true] {
            let exits = intercepts(has_next_rip);
            let always = Intercepts::NMI
                | Intercepts::INIT
                | Intercepts::CPUID
                | Intercepts::INVLPGA
                | Intercepts::PORTS
                | Intercepts::MSRS
                | Intercepts::SHUTDOWN
                | Intercepts::VMRUN
                | Intercepts::VMMCALL
                | Intercepts::VMLOAD
                | Intercepts::VMSAVE
                | Intercepts::STGI
                | Intercepts::CLGI
                | Intercepts::SKINIT;
            assert!(exits.contains(always));
            assert_eq!(exits.contains(Intercepts::WBINVD), has_next_rip);
        }
    }
}
