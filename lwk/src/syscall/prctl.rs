//! prctl(2), by option. Options that would change the proxy instead of the program are handled
//! here, or refused as by a Linux that is configured without them.

use alloc::boxed::Box;

use crate::model::errno::Errno;
use crate::model::number;
use crate::syscall::delegate::{delegate, finish};
use crate::task::flow::Flow;
use crate::task::layout::ADDR_NO_RANDOMIZE;
use crate::task::thread::Thread;

/// Handling of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Delegated: it concerns the process or thread as the base knows them.
    Delegated,
    /// Returns the address of the word that is cleared when the thread exits.
    TidAddress,
    /// Refused.
    Refused,
}

/// Delegated options: parent-death signal; dumpable and ptracer; capabilities and securebits;
/// timing, timer slack; thread name; performance events; machine checks; child subreaper; THP; IO
/// flusher.
const DELEGATED: [u64; 30] = [
    1, 2, 3, 4, 7, 8, 13, 14, 15, 16, 23, 24, 25, 27, 28, 29, 30, 31, 32, 33, 34, 36, 37, 38, 39,
    41, 42, 47, 57, 58,
];
/// `PR_SET_PTRACER` of the Yama module.
const SET_PTRACER: u64 = 0x5961_6d61;
const GET_TID_ADDRESS: u64 = 40;

/// All others change or report the caller's memory, registers or system calls: seccomp, PR_SET_MM,
/// PR_SET_TSC, speculation control, syscall user dispatch, VMA names, MDWE and so on. Those of
/// other architectures are refused, too.
fn kind(option: u64) -> Kind {
    match option {
        GET_TID_ADDRESS => Kind::TidAddress,
        SET_PTRACER => Kind::Delegated,
        option if DELEGATED.contains(&option) => Kind::Delegated,
        _ => Kind::Refused,
    }
}

/// prctl(2).
pub(super) fn prctl(thread: Box<Thread>, a: [u64; 6]) -> Flow {
    // As on Linux, it is an int.
    let option = u64::from(a[0] as u32);
    match kind(option) {
        Kind::Delegated => delegate(thread, number::PRCTL, a),
        Kind::TidAddress => {
            let at = thread.clear_child_tid.to_le_bytes();
            let written = thread.process.space().write(a[1], &at);
            finish(thread, written.map(|()| 0))
        }
        Kind::Refused => finish(thread, Err(Errno::EINVAL)),
    }
}

/// personality(2): only ADDR_NO_RANDOMIZE is supported.
pub(super) fn personality(thread: &mut Thread, [wanted, ..]: [u64; 6]) -> Result<u64, Errno> {
    const QUERY: u32 = u32::MAX;
    let process = &thread.process;
    match wanted as u32 {
        QUERY => Ok(process.personality()),
        wanted if u64::from(wanted) & !ADDR_NO_RANDOMIZE == 0 => {
            Ok(process.set_personality(wanted.into()))
        }
        _ => Err(Errno::EINVAL),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_affect_the_proxy_are_refused() {
        const SECCOMP: [u64; 2] = [21, 22];
        const SET_TSC: u64 = 26;
        const SET_MM: u64 = 35;
        const SPECULATION: [u64; 2] = [52, 53];
        const DISPATCH: u64 = 59;
        const MEMORY: [u64; 4] = [65, 66, 67, 68];
        const SET_VMA: u64 = 0x5356_4d41;
        const UNKNOWN: [u64; 3] = [0, 1000, u64::MAX];
        let single = [SET_TSC, SET_MM, DISPATCH, SET_VMA];
        let all = SECCOMP.iter().chain(&SPECULATION).chain(&MEMORY);
        for &option in all.chain(&UNKNOWN).chain(&single) {
            assert_eq!(kind(option), Kind::Refused, "{option}");
        }
    }

    #[test]
    fn options_on_the_process_are_delegated() {
        const SET_NAME: u64 = 15;
        const SUBREAPER: u64 = 36;
        const NO_NEW_PRIVS: u64 = 38;
        // As advice on huge pages, it changes nothing that programs see.
        const SET_THP_DISABLE: u64 = 41;
        let options = [
            SET_NAME,
            SUBREAPER,
            NO_NEW_PRIVS,
            SET_THP_DISABLE,
            SET_PTRACER,
        ];
        for option in options {
            assert_eq!(kind(option), Kind::Delegated);
        }
        assert_eq!(kind(GET_TID_ADDRESS), Kind::TidAddress);
        assert!(DELEGATED.is_sorted());
    }
}
