//! The code of one running kernel, and what has changed of it.

use super::boot_patches::Patch;
use super::patch_sites::{Boot, CALL_SIZE, Kind, Site};
use crate::bytes::u32_at;
use crate::memory::PhysicalMemory;
use crate::running::{RunningError, RunningKernel};
use std::ops::Range;

/// Bytes compared at once.
const BLOCK: usize = 64 << 10;
/// Limit on the changes that are reported.
const CHANGES_MAX: usize = 64;
/// Changed bytes that are this close are one change.
const GAP: usize = 8;

/// `call`, and `jmp` with a 32-bit and with an 8-bit distance.
pub(super) const CALL: u8 = 0xe8;
pub(super) const JUMP: u8 = 0xe9;
const SHORT_JUMP: u8 = 0xeb;
/// `lock`, and the prefix in its place while there is one processor.
const LOCK: u8 = 0xf0;
const NO_LOCK: u8 = 0x3e;
/// `int3`, by which the kernel has nobody execute what it changes (`text_poke_bp_batch`).
const BREAKPOINT: u8 = 0xcc;
/// `ret`, and `int3` behind it (`retinsn`, arch/x86/kernel/static_call.c).
const RETURN: [u8; 5] = [0xc3, 0xcc, 0xcc, 0xcc, 0xcc];
/// No-ops of two and five bytes (`x86_nops`, arch/x86/kernel/alternative.c).
const NOP_2: [u8; 2] = [0x66, 0x90];
const NOP_5: [u8; 5] = [0x0f, 0x1f, 0x44, 0x00, 0x00];
/// `data16 data16 xorl %eax, %eax`: a static call of a function that returns 0.
const RETURN_0: [u8; 5] = [0x2e, 0x2e, 0x2e, 0x31, 0xc0];
const RETURN_0_NEWER: [u8; 5] = [0x66, 0x66, 0x66, 0x31, 0xc0];
/// `ud1 (%edx), %rdi`: the static call that warns (`warninsn`, arch/x86/kernel/static_call.c).
const WARN: [u8; 5] = [0x67, 0x48, 0x0f, 0xb9, 0x3a];

/// Bytes of a running kernel that are not as they must be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Virtual address of the first one.
    pub address: u64,
    /// What must be there.
    pub expected: Vec<u8>,
    /// What is there.
    pub found: Vec<u8>,
}

/// A call or jump at a place that the kernel patches, which is not in the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transfer {
    /// Virtual address of the instruction.
    pub address: u64,
    /// Where it leads to.
    pub target: u64,
    /// Whether it is one to a tracer, at the start of a function or in the code of ftrace; else it is
    /// a static call.
    pub is_traced: bool,
}

/// What differs in a running kernel.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Differences {
    /// What must not.
    pub changes: Vec<Change>,
    /// Calls and jumps whose targets the kernel decides while it runs.
    pub transfers: Vec<Transfer>,
}

/// Code or constants of a running kernel, as they must stay.
#[derive(Debug)]
pub struct Code {
    /// Virtual address of the first byte.
    start: u64,
    bytes: Vec<u8>,
    /// Places that are patched at any time, by address.
    patched: Vec<Site>,
}

impl Code {
    /// Constants: nothing is patched.
    pub(super) fn constant(start: u64, bytes: Vec<u8>) -> Self {
        Self {
            start,
            bytes,
            patched: Vec::new(),
        }
    }

    /// Code at `start`, whose patches of the boot are taken from the kernel where they have one of
    /// their forms. `thunks` are those of returns, and of indirect calls and jumps; `code` is all code
    /// that comes from files.
    pub(super) fn learn<M: PhysicalMemory + ?Sized>(
        kernel: &RunningKernel<'_, M>,
        start: u64,
        mut bytes: Vec<u8>,
        sites: &[Site],
        thunks: &[u64],
        code: &[Range<u64>],
    ) -> Result<Self, RunningError> {
        // Others may be within what an alternative replaces.
        for of_any_form in [true, false] {
            for site in sites {
                let Kind::Boot(form) = site.kind else {
                    continue;
                };
                if (form == Boot::Any) != of_any_form {
                    continue;
                }
                let Some(at) = site.start.checked_sub(start).map(|at| at as usize) else {
                    continue;
                };
                let end = at.saturating_add(site.size as usize).min(bytes.len());
                if at >= end {
                    continue;
                }
                let mut found = vec![0; end - at];
                kernel.read(site.start, &mut found)?;
                let patch = Patch {
                    address: site.start,
                    expected: &bytes[at..end],
                    found: &found,
                    thunks,
                    code,
                };
                if patch.has_form(form) {
                    bytes[at..end].copy_from_slice(&found);
                }
            }
        }
        let patched = sites
            .iter()
            .filter(|site| !matches!(site.kind, Kind::Boot(_)))
            .copied()
            .collect();
        Ok(Self {
            start,
            bytes,
            patched,
        })
    }

    /// Virtual addresses of it.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        self.start..self.start + self.bytes.len() as u64
    }

    /// What must be there, but for places that are patched at any time.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// What differs in the kernel now; of changes at most some dozens. A place that is just being
    /// patched may be among them: look twice. Bytes at virtual addresses in `probed` are not compared.
    ///
    /// # Errors
    /// [`RunningError`] when it cannot be read.
    pub fn differences<M: PhysicalMemory + ?Sized>(
        &self,
        kernel: &RunningKernel<'_, M>,
        probed: &[Range<u64>],
    ) -> Result<Differences, RunningError> {
        let mut differences = Differences::default();
        let mut block = vec![0; BLOCK];
        let mut at = 0;
        while at < self.bytes.len() && differences.changes.len() < CHANGES_MAX {
            let end = self.end_of_block(at);
            let found = &mut block[..end - at];
            kernel.read(self.start + at as u64, found)?;
            self.compare(at, found, probed, &mut differences);
            at = end;
        }
        Ok(differences)
    }

    /// End of the block at offset `at`: no patched place is in two blocks.
    fn end_of_block(&self, at: usize) -> usize {
        let end = (at + BLOCK).min(self.bytes.len());
        let border = self.start + end as u64;
        let before = self.patched.partition_point(|site| site.start < border);
        match before.checked_sub(1).map(|last| &self.patched[last]) {
            Some(site) if site.range().end > border && end < self.bytes.len() => {
                (site.start - self.start) as usize
            }
            _ => end,
        }
    }

    /// Adds the differences in `found`, which is at offset `at`.
    fn compare(
        &self,
        at: usize,
        found: &[u8],
        probed: &[Range<u64>],
        differences: &mut Differences,
    ) {
        let expected = &self.bytes[at..at + found.len()];
        if found == expected {
            return;
        }
        let differs = |index: &usize| found[*index] != expected[*index];
        let address = |index: usize| self.start + (at + index) as u64;
        let is_probed = |index| probed.iter().any(|range| range.contains(&address(index)));
        let mut open: Option<Range<usize>> = None;
        let mut rest = 0;
        while let Some(index) = (rest..found.len()).find(differs) {
            rest = index + 1;
            if is_probed(index) {
                continue;
            }
            if let Some((end, transfer)) = self.permitted(address(index), at, found) {
                differences.transfers.extend(transfer);
                rest = end.max(rest);
                continue;
            }
            // What is close is one change, unless something permitted is between.
            open = match open {
                Some(change)
                    if index - change.end < GAP && (change.end..index).all(|at| !differs(&at)) =>
                {
                    Some(change.start..rest)
                }
                other => {
                    differences.add(address(0), expected, found, other);
                    Some(index..rest)
                }
            };
        }
        differences.add(address(0), expected, found, open);
    }

    /// If the byte at `address` is of a place that is patched, and what is there is one of its forms:
    /// index in `found`, which is at offset `at`, of the end of that place, and where it leads to.
    fn permitted(
        &self,
        address: u64,
        at: usize,
        found: &[u8],
    ) -> Option<(usize, Option<Transfer>)> {
        let after = self.patched.partition_point(|site| site.start <= address);
        // Two places may begin at the same byte: a static call at the start of a function.
        let near = self.patched[..after].iter().rev().take(2);
        near.filter(|site| site.range().contains(&address))
            .find_map(|site| {
                let index = ((site.start - self.start) as usize).checked_sub(at)?;
                let form = Form::of(site, found.get(index..)?)?;
                Some((index + form.size, form.transfer))
            })
    }
}

impl Differences {
    /// Adds a change, if there is one, by its range in `found`, which is at virtual address `start`.
    fn add(&mut self, start: u64, expected: &[u8], found: &[u8], range: Option<Range<usize>>) {
        self.changes.extend(range.map(|range| Change {
            address: start + range.start as u64,
            expected: expected[range.clone()].to_vec(),
            found: found[range].to_vec(),
        }));
    }
}

/// What is at a place that is patched.
#[derive(Debug, PartialEq, Eq)]
struct Form {
    /// Bytes of it.
    size: usize,
    transfer: Option<Transfer>,
}

impl Form {
    /// What is at a place, if it is one of the forms of that place.
    fn of(site: &Site, bytes: &[u8]) -> Option<Self> {
        let leads_on = |opcodes: &[u8]| {
            let transfer = Transfer {
                address: site.start,
                target: target(site.start, bytes, opcodes)?,
                is_traced: site.kind == Kind::Ftrace,
            };
            Some(Self {
                size: CALL_SIZE as usize,
                transfer: Some(transfer),
            })
        };
        // It is just being patched: the other bytes can be either form's.
        if bytes.first() == Some(&BREAKPOINT) && !matches!(site.kind, Kind::Boot(_)) {
            return Self::nothing(bytes, &[&[BREAKPOINT]]);
        }
        match site.kind {
            Kind::Boot(_) => None,
            Kind::JumpLabel(to) => Self::nothing(bytes, &[&NOP_5, &NOP_2])
                .or_else(|| Self::jump(site.start, bytes, to)),
            Kind::StaticCall => {
                let forms: [&[u8]; 5] = [&NOP_5, &RETURN_0, &RETURN_0_NEWER, &RETURN, &WARN];
                Self::nothing(bytes, &forms).or_else(|| leads_on(&[CALL, JUMP]))
            }
            Kind::Lock => Self::nothing(bytes, &[&[LOCK], &[NO_LOCK]]),
            Kind::Ftrace => Self::nothing(bytes, &[&NOP_5]).or_else(|| leads_on(&[CALL])),
        }
    }

    /// One of some instructions without effect for others.
    fn nothing(bytes: &[u8], forms: &[&[u8]]) -> Option<Self> {
        let form = forms.iter().find(|form| bytes.starts_with(form))?;
        Some(Self {
            size: form.len(),
            transfer: None,
        })
    }

    /// A jump to `to`, of either size.
    fn jump(at: u64, bytes: &[u8], to: u64) -> Option<Self> {
        let short = match bytes {
            [SHORT_JUMP, distance, ..] => {
                let distance = i64::from(distance.cast_signed());
                Some((at + 2).wrapping_add_signed(distance))
            }
            _ => None,
        };
        let size = match to {
            _ if short == Some(to) => 2,
            _ if target(at, bytes, &[JUMP]) == Some(to) => CALL_SIZE as usize,
            _ => return None,
        };
        Some(Self {
            size,
            transfer: None,
        })
    }
}

/// Where the call or jump at `at` leads to, if it is one of these.
pub(super) fn target(at: u64, bytes: &[u8], opcodes: &[u8]) -> Option<u64> {
    if !opcodes.contains(bytes.first()?) {
        return None;
    }
    let distance = i64::from(u32_at(bytes, 1)?.cast_signed());
    Some((at + CALL_SIZE).wrapping_add_signed(distance))
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 0xffff_ffff_8100_0000;

    fn site(kind: Kind) -> Site {
        Site {
            start: START,
            size: CALL_SIZE,
            kind,
        }
    }

    fn leads_to(kind: Kind, bytes: &[u8]) -> Option<Option<u64>> {
        let form = Form::of(&site(kind), bytes)?;
        Some(form.transfer.map(|transfer| transfer.target))
    }

    #[test]
    fn a_jump_label_is_nothing_or_its_own_jump() {
        let label = Kind::JumpLabel(START + 0x20);
        assert_eq!(leads_to(label, &NOP_5), Some(None));
        assert_eq!(leads_to(label, &[0x66, 0x90, 1, 2, 3]), Some(None));
        assert_eq!(leads_to(label, &[BREAKPOINT, 0x1f, 0x44, 0, 0]), Some(None));
        assert_eq!(leads_to(label, &[JUMP, 0x1b, 0, 0, 0]), Some(None));
        assert_eq!(leads_to(label, &[SHORT_JUMP, 0x1e, 0, 0, 0]), Some(None));
        for other in [
            [JUMP, 0x1c, 0, 0, 0],
            [SHORT_JUMP, 0x1f, 0, 0, 0],
            [0x90; 5],
        ] {
            assert_eq!(leads_to(label, &other), None, "{other:02x?}");
        }
    }

    #[test]
    fn a_call_tells_where_it_leads() {
        let back = [CALL, 0xfb, 0xff, 0xff, 0xff];
        assert_eq!(leads_to(Kind::Ftrace, &back), Some(Some(START)));
        assert_eq!(leads_to(Kind::StaticCall, &back), Some(Some(START)));
        let jump = [JUMP, 0, 0, 0, 0];
        assert_eq!(leads_to(Kind::Ftrace, &jump), None);
        assert_eq!(leads_to(Kind::StaticCall, &jump), Some(Some(START + 5)));
        assert_eq!(leads_to(Kind::StaticCall, &RETURN), Some(None));
        assert_eq!(leads_to(Kind::StaticCall, &WARN), Some(None));
    }

    #[test]
    fn only_what_differs_and_may_not_is_a_change() {
        let bytes = vec![0x55; 64];
        let label = Site {
            start: START + 16,
            ..site(Kind::JumpLabel(START))
        };
        let code = Code {
            start: START,
            bytes: bytes.clone(),
            patched: vec![label],
        };
        let mut found = bytes;
        found[16..21].copy_from_slice(&NOP_5);
        found[40] = 1;
        found[44] = 2;
        found[48] = 4;
        found[50] = 5;
        found[60] = 3;
        let probed: Vec<_> = std::iter::once(START + 48..START + 49).collect();
        let mut differences = Differences::default();
        code.compare(0, &found, &probed, &mut differences);
        let places: Vec<_> = differences
            .changes
            .iter()
            .map(|change| (change.address - START, change.found.len()))
            .collect();
        assert_eq!(places, [(40, 5), (50, 1), (60, 1)]);
    }

    #[test]
    fn no_place_is_in_two_blocks() {
        let border = START + BLOCK as u64;
        let code = Code {
            start: START,
            bytes: vec![0; 2 * BLOCK],
            patched: vec![Site {
                start: border - 2,
                ..site(Kind::Ftrace)
            }],
        };
        assert_eq!(code.end_of_block(0), BLOCK - 2);
        assert_eq!(code.end_of_block(BLOCK - 2), 2 * BLOCK - 2);
    }
}
