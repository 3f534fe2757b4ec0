//! What exits of a guest.

use super::vmcb::Intercepts;

/// What exits, but for what changes while a guest runs. Interrupts do not.
pub(super) fn intercepts(has_next_rip: bool) -> Intercepts {
    let others = Intercepts::IRET | Intercepts::INTERRUPT | Intercepts::VIRTUAL_INTERRUPT;
    let mut exits = Intercepts::all() - others;
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

/// What exits of a lightweight kernel that shares the core, which is not confined.
pub(super) fn shared_intercepts() -> Intercepts {
    let confining = Intercepts::CPUID
        | Intercepts::PORTS
        | Intercepts::MSRS
        | Intercepts::WBINVD
        | Intercepts::INVD;
    (intercepts(true) - confining) | Intercepts::INTERRUPT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_node_takes_its_interrupts_and_those_of_a_kernel_beside_it_exit() {
        let own = Intercepts::INTERRUPT | Intercepts::VIRTUAL_INTERRUPT;
        assert!(!intercepts(true).intersects(own));
        assert!(!resumed_intercepts(u64::MAX, true).intersects(own));
        let exits = shared_intercepts();
        assert!(exits.contains(Intercepts::INTERRUPT | Intercepts::NMI | Intercepts::INIT));
        assert!(exits.contains(Intercepts::VMRUN | Intercepts::VMMCALL | Intercepts::SHUTDOWN));
        assert!(!exits.intersects(Intercepts::MSRS | Intercepts::PORTS));
    }

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
