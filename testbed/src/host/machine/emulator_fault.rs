//! Recognises a known fault of the emulator, as against faults of the tested code.
//!
//! Linux patches its own code while it runs: it puts a breakpoint over the first byte, synchronises
//! all cores, and then puts the new code there. QEMU before 8.1 may go on executing its translation
//! of the breakpoint on another core, so that the kernel takes a breakpoint exception that nobody
//! has set and panics ("Oops: int3"), or hangs silently. On a loaded host it has been seen in one
//! of ten boots of 6.12, mostly where the kernel marks its clock stable; any kernel and any node
//! can be hit. See the thread "qemu-x86_64 booting with 8.0.0 stil see int3" on linux-kernel, July
//! 2023. It needs a thread for each core: neither [`super::Accelerator::Tcg`] nor KVM is affected.

/// Whether a kernel log has a breakpoint exception where no breakpoint is. If there *is* a
/// breakpoint, the kernel is at fault.
pub(super) fn is_in(log: &str) -> bool {
    let mut lines = log.lines();
    while lines.any(|line| line.contains("int3: 0000 [#")) {
        let code = lines
            .clone()
            .take(16)
            .find_map(|line| line.split_once("Code: "));
        if code.is_some_and(|(_, bytes)| executed_byte(bytes).is_some_and(|byte| byte != "cc")) {
            return true;
        }
    }
    false
}

/// Byte before the one in angle brackets: the brackets mark the byte after the breakpoint.
fn executed_byte(bytes: &str) -> Option<&str> {
    bytes.split_once(" <")?.0.rsplit(' ').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(code: &str) -> String {
        format!(
            "[    1.54] nvme nvme0: ready\n[    1.55] Oops: int3: 0000 [#1] PREEMPT SMP NOPTI\n\
             [    1.55] RIP: 0010:sched_clock_cpu+0x9/0x190\n[    1.55] Code: {code}\n"
        )
    }

    #[test]
    fn missing_breakpoint_is_the_emulators_fault() {
        assert!(is_in(&log(
            "f3 0f 1e fa 41 54 55 53 66 <90> e8 c1 ed f0 ff"
        )));
    }

    #[test]
    fn existing_breakpoint_is_the_kernels_fault() {
        assert!(!is_in(&log("90 cc cc cc <cc> cc cc cc")));
        assert!(!is_in("[    1.0] all is well\n"));
        assert!(!is_in("[ 1.5] Oops: int3: 0000 [#1]\n"));
    }
}
