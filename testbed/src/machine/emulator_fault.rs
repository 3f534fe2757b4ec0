//! A known fault of the emulator, told from faults of what is tested.
//!
//! Linux changes its own code while it runs: it puts a breakpoint over the first
//! byte, makes all cores notice, and then puts the new code there. QEMU before 8.1
//! may go on executing its translation of the breakpoint on another core, so that
//! the kernel meets a breakpoint that nobody has set and gives up ("Oops: int3"),
//! or hangs without a word.
//! On a loaded host it has been seen in one of ten boots of 6.12, mostly where the
//! kernel marks its clock stable; no kernel and no node is safe from it. See the
//! thread "qemu-x86_64 booting with 8.0.0 stil see int3" on linux-kernel, July 2023.
//! It takes cores that are emulated at once: neither [`super::Accelerator::Tcg`]
//! nor KVM is affected.

/// Whether a kernel log tells of a breakpoint that was executed where none is.
/// A breakpoint that *is* there counts as the kernel's own fault.
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

/// The byte before that in angle brackets: the brackets stand at what comes after
/// the breakpoint.
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
    fn breakpoint_that_is_not_there_is_the_emulators() {
        assert!(is_in(&log(
            "f3 0f 1e fa 41 54 55 53 66 <90> e8 c1 ed f0 ff"
        )));
    }

    #[test]
    fn breakpoint_that_is_there_is_not() {
        assert!(!is_in(&log("90 cc cc cc <cc> cc cc cc")));
        assert!(!is_in("[    1.0] all is well\n"));
        assert!(!is_in("[ 1.5] Oops: int3: 0000 [#1]\n"));
    }
}
