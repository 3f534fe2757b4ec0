//! The forms of what a kernel patches at boot (arch/x86/kernel/alternative.c, callthunks.c).

use super::code::{CALL, JUMP, target};
use super::patch_sites::{Boot, CALL_SIZE};
use std::ops::Range;

/// How far before a function its calls are counted, at most (`callthunks.c`).
const COUNTING_SIZE: u64 = 32;
/// `ret`, `int3`, and a prefix without effect.
const RETURN: u8 = 0xc3;
const BREAKPOINT: u8 = 0xcc;
const PREFIX: u8 = 0x2e;
/// As many of these fill an indirect call up to the size of a direct one.
const PREFIXES_MAX: usize = 3;
/// What `endbr64` becomes: `nopl -42(%rax)`, since Linux 6.16 a longer `nopl (%rax)`.
const SEALED: [[u8; 4]; 2] = [[0x0f, 0x1f, 0x40, 0xd6], [0x66, 0x0f, 0x1f, 0x00]];
const LFENCE: [u8; 3] = [0x0f, 0xae, 0xe8];
/// No-ops up to six bytes.
const NOPS: [&[u8]; 6] = [
    &[0x90],
    &[0x66, 0x90],
    &[0x0f, 0x1f, 0x00],
    &[0x0f, 0x1f, 0x40, 0x00],
    &[0x0f, 0x1f, 0x44, 0x00, 0x00],
    &[0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00],
];

/// A place that is patched at boot.
#[derive(Debug)]
pub(super) struct Patch<'a> {
    pub(super) address: u64,
    /// What is there in the image.
    pub(super) expected: &'a [u8],
    /// What is there.
    pub(super) found: &'a [u8],
    /// The thunks: those that return, and those of indirect calls and jumps.
    pub(super) thunks: &'a [u64],
    /// All code that comes from files: the kernel's, and that of modules.
    pub(super) code: &'a [Range<u64>],
}

impl Patch<'_> {
    /// Whether what is there is as in the image, or of a form that such a patch has.
    pub(super) fn has_form(&self, form: Boot) -> bool {
        let found = self.found;
        found == self.expected
            || match form {
                Boot::Any => true,
                Boot::Call => self.is_counted(),
                Boot::Return => {
                    found.first() == Some(&RETURN)
                        || self.leads(&[JUMP], |to| self.thunks.contains(&to))
                }
                Boot::Indirect => self.is_indirect(),
                Boot::Endbr => SEALED.iter().any(|sealed| found == sealed),
            }
    }

    /// Whether it is a call to where calls of the same function are counted.
    fn is_counted(&self) -> bool {
        let Some(function) = target(self.address, self.expected, &[CALL]) else {
            return false;
        };
        self.leads(&[CALL], |to| {
            (function.saturating_sub(COUNTING_SIZE)..=function).contains(&to)
        })
    }

    /// Whether it is an indirect call or jump, perhaps behind `lfence`, or one to a thunk, in the image
    /// or made by the kernel; and nothing with effect behind it.
    fn is_indirect(&self) -> bool {
        let is_thunk = |to| {
            let is_of_file = self.code.iter().any(|part| part.contains(&to));
            !is_of_file || self.thunks.contains(&to)
        };
        let prefixes = self.found.iter().take_while(|byte| **byte == PREFIX);
        let prefixes = prefixes.count().min(PREFIXES_MAX);
        let rest = &self.found[prefixes..];
        let address = self.address + prefixes as u64;
        if target(address, rest, &[CALL, JUMP]).is_some_and(is_thunk) {
            return true;
        }
        let rest = rest.strip_prefix(&LFENCE).unwrap_or(rest);
        // Registers from r8 on have a prefix.
        let rest = rest.strip_prefix(&[0x41]).unwrap_or(rest);
        match rest {
            [0xff, 0xd0..=0xd7 | 0xe0..=0xe7, padding @ ..] => is_padding(padding),
            _ => false,
        }
    }

    /// Whether it is one of these instructions, and leads to such a target.
    fn leads(&self, opcodes: &[u8], is_right: impl Fn(u64) -> bool) -> bool {
        self.found.len() >= CALL_SIZE as usize
            && target(self.address, self.found, opcodes).is_some_and(is_right)
    }
}

/// Whether there is nothing but no-ops and breakpoints. The bytes of what follows the instruction may
/// be the last one: a place has the size of the longest that can be there.
fn is_padding(bytes: &[u8]) -> bool {
    match bytes {
        [] | [_] => true,
        [BREAKPOINT, rest @ ..] => is_padding(rest),
        _ => NOPS
            .iter()
            .filter_map(|nop| bytes.strip_prefix(*nop))
            .any(is_padding),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: u64 = 0xffff_ffff_8100_1000;

    fn has_form(form: Boot, expected: &[u8], found: &[u8]) -> bool {
        let patch = Patch {
            address: ADDRESS,
            expected,
            found,
            thunks: &[ADDRESS + 0x105],
            code: std::slice::from_ref(&(ADDRESS - 0x1000..ADDRESS + 0x1000)),
        };
        patch.has_form(form)
    }

    #[test]
    fn calls_are_counted_before_their_function() {
        let call = [CALL, 0x80, 0, 0, 0];
        assert!(has_form(Boot::Call, &call, &call));
        assert!(has_form(Boot::Call, &call, &[CALL, 0x70, 0, 0, 0]));
        assert!(!has_form(Boot::Call, &call, &[CALL, 0x81, 0, 0, 0]));
        assert!(!has_form(Boot::Call, &call, &[JUMP, 0x80, 0, 0, 0]));
    }

    #[test]
    fn returns_return() {
        let jump = [JUMP, 0x80, 0, 0, 0];
        for found in [[RETURN, 0xcc, 0xcc, 0xcc, 0xcc], [JUMP, 0, 1, 0, 0]] {
            assert!(has_form(Boot::Return, &jump, &found), "{found:02x?}");
        }
        assert!(!has_form(Boot::Return, &jump, &[JUMP, 1, 1, 0, 0]));
    }

    #[test]
    fn indirect_calls_stay_indirect() {
        let call = [CALL, 0x80, 0, 0, 0, 0x48];
        for found in [
            [0xff, 0xd0, 0x0f, 0x1f, 0x00, 0x48],
            [0x41, 0xff, 0xe3, 0x66, 0x90, 0x48],
            [0x0f, 0xae, 0xe8, 0xff, 0xe1, 0x48],
            [0xff, 0xe0, 0xcc, 0xcc, 0xcc, 0x48],
            [CALL, 0, 0, 1, 0, 0x48],
            [PREFIX, CALL, 0, 0, 1, 0],
            [PREFIX, PREFIX, PREFIX, 0xff, 0xd0, 0x48],
            [CALL, 0, 1, 0, 0, 0x48],
        ] {
            assert!(has_form(Boot::Indirect, &call, &found), "{found:02x?}");
        }
        for found in [
            [CALL, 0x81, 0, 0, 0, 0x48],
            [0xff, 0xd0, 0x48, 0x89, 0xc3, 0x48],
            [0x90; 6],
        ] {
            assert!(!has_form(Boot::Indirect, &call, &found), "{found:02x?}");
        }
    }

    #[test]
    fn seals() {
        let endbr = [0xf3, 0x0f, 0x1e, 0xfa];
        assert!(has_form(Boot::Endbr, &endbr, &SEALED[0]));
        assert!(!has_form(Boot::Endbr, &endbr, &[0x90; 4]));
    }
}
