//! The places in a kernel's code that the kernel itself changes, from the tables in its image.

use super::ReferenceError;
use crate::btf::Btf;
use crate::bytes::{array_at, length, u32_at, u64_at};
use crate::elf::Vmlinux;
use crate::symbols::Symbols;
use std::ops::Range;

/// Bytes of a near call or jump.
pub(super) const CALL_SIZE: u64 = 5;
/// Bytes of the longest instruction that a boot replaces at a retpoline: a conditional jump.
const JUMP_SIZE: u64 = 6;
/// Bytes of `endbr64`.
const ENDBR_SIZE: u64 = 4;
/// Size of `struct jump_entry`: offsets of code and target, each from its own place, and the key.
const JUMP_ENTRY: usize = 16;
/// Size of `struct static_call_site`.
const STATIC_CALL_ENTRY: usize = 8;
/// Symbols of a static call's trampoline (`STATIC_CALL_TRAMP_PREFIX`).
const TRAMPOLINE: &str = "__SCT__";
/// End of the names of thunks that return, and start of those of indirect calls and jumps.
const RETURN_THUNK: &str = "return_thunk";
const INDIRECT_THUNK: &str = "__x86_indirect_";
/// Calls and jumps in the code of ftrace, which lead to the only tracer that there is, if it is one.
const FTRACE_CALLS: [&str; 3] = ["ftrace_call", "ftrace_regs_call", "ftrace_graph_call"];

/// What may be at a place that is patched at any time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Patched at boot only, to what depends on processor and options.
    Boot(Boot),
    /// Nothing, or a jump to that link address.
    JumpLabel(u64),
    /// Nothing, a call or jump to code, or a return; also in the code of ftrace.
    StaticCall,
    /// At the start of a function: nothing, or a call to a tracer.
    Ftrace,
    /// A prefix: `lock`, or one without effect.
    Lock,
}

/// What may be at a place that is patched at boot only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Boot {
    /// Alternatives, paravirtualization, constants: anything.
    Any,
    /// A call; or one to a few bytes before its target, where calls are counted.
    Call,
    /// A return, or a jump to a thunk that returns.
    Return,
    /// An indirect call or jump, by a thunk or not.
    Indirect,
    /// `endbr64`, or an instruction without effect.
    Endbr,
}

/// A place in the code that is patched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Site {
    pub(super) start: u64,
    pub(super) size: u64,
    pub(super) kind: Kind,
}

impl Site {
    pub(super) fn range(&self) -> Range<u64> {
        self.start..self.start.saturating_add(self.size)
    }
}

/// All of them, by link address.
#[derive(Debug)]
pub(super) struct Sites {
    sites: Vec<Site>,
    /// Thunks that return, and those of indirect calls and jumps.
    thunks: Vec<u64>,
}

impl Sites {
    pub(super) fn find(
        vmlinux: &Vmlinux<'_>,
        symbols: &Symbols,
        btf: &Btf,
    ) -> Result<Self, ReferenceError> {
        let table = |start, end| table(vmlinux, symbols, start, end);
        let jumps = table("__start___jump_table", "__stop___jump_table")?;
        let calls = table("__start_static_call_sites", "__stop_static_call_sites")?;
        let traced = table("__start_mcount_loc", "__stop_mcount_loc")?;
        let sections: Vec<_> = vmlinux.sections().collect();
        let mut sites = boot_sites(&sections, btf);
        sites.extend(jump_labels(jumps));
        sites.extend(static_calls(calls));
        sites.extend(trampolines(symbols));
        sites.extend(traced_functions(traced.1));
        let calls = FTRACE_CALLS.iter().filter_map(|name| symbols.address(name));
        sites.extend(calls.map(|start| site(start, CALL_SIZE, Kind::StaticCall)));
        sites.sort_by_key(|site| site.start);
        let thunks = symbols.iter().filter(|symbol| {
            symbol.name.ends_with(RETURN_THUNK) || symbol.name.starts_with(INDIRECT_THUNK)
        });
        Ok(Self {
            thunks: thunks.map(|symbol| symbol.address).collect(),
            sites,
        })
    }

    /// The thunks in a kernel with that offset.
    pub(super) fn thunks(&self, offset: u64) -> Vec<u64> {
        let thunks = self.thunks.iter();
        thunks.map(|thunk| thunk.wrapping_add(offset)).collect()
    }

    /// Those in a range of link addresses, with the addresses of a kernel with that offset.
    pub(super) fn relocated(&self, range: &Range<u64>, offset: u64) -> Vec<Site> {
        let inside = self.sites.iter().filter(|site| range.contains(&site.start));
        let relocated = inside.map(|site| Site {
            start: site.start.wrapping_add(offset),
            kind: match site.kind {
                Kind::JumpLabel(target) => Kind::JumpLabel(target.wrapping_add(offset)),
                kind => kind,
            },
            ..*site
        });
        relocated.collect()
    }
}

/// A section: its name, the address of its first byte, and its content.
pub(super) type Part<'a> = (&'a str, u64, &'a [u8]);

/// The places in a module's code, by address: from its sections, relocated, and the addresses of its
/// trampolines of static calls.
pub(super) fn module_sites(
    sections: &[Part<'_>],
    trampolines: impl Iterator<Item = u64>,
    btf: &Btf,
) -> Vec<Site> {
    let mut sites = boot_sites(sections, btf);
    for &(name, start, bytes) in sections {
        match name {
            "__jump_table" => sites.extend(jump_labels((start, bytes))),
            ".static_call_sites" => sites.extend(static_calls((start, bytes))),
            "__mcount_loc" => sites.extend(traced_functions(bytes)),
            _ => {}
        }
    }
    sites.extend(trampolines.map(|start| site(start, CALL_SIZE, Kind::StaticCall)));
    sites.sort_by_key(|site| site.start);
    sites
}

/// Whether a symbol is of the trampoline of a static call.
pub(super) fn is_trampoline(name: &str) -> bool {
    name.starts_with(TRAMPOLINE)
}

/// The table between two symbols, with its link address.
fn table<'a>(
    vmlinux: &Vmlinux<'a>,
    symbols: &Symbols,
    start: &'static str,
    end: &'static str,
) -> Result<(u64, &'a [u8]), ReferenceError> {
    let address = |name| symbols.address(name).ok_or(ReferenceError::Missing(name));
    let (from, to) = (address(start)?, address(end)?);
    let size = usize::try_from(to.saturating_sub(from)).unwrap_or(usize::MAX);
    if size == 0 {
        return Ok((from, &[]));
    }
    let bytes = vmlinux
        .bytes_from(from)
        .and_then(|bytes| bytes.get(..size))
        .ok_or(ReferenceError::Missing(start))?;
    Ok((from, bytes))
}

/// The address that the 32-bit offset at `at` of a table, from its own place, leads to.
fn relative(start: u64, bytes: &[u8], at: usize) -> Option<u64> {
    let offset = i64::from(u32_at(bytes, at)?.cast_signed());
    Some(start.wrapping_add(at as u64).wrapping_add_signed(offset))
}

/// The addresses that a list of offsets leads to.
fn entries(start: u64, bytes: &[u8]) -> impl Iterator<Item = u64> {
    (0..bytes.len() / 4).filter_map(move |index| relative(start, bytes, index * 4))
}

fn site(start: u64, size: u64, kind: Kind) -> Site {
    Site { start, size, kind }
}

/// What is patched at boot, and when the number of processors changes.
fn boot_sites(sections: &[Part<'_>], btf: &Btf) -> Vec<Site> {
    let boot = |start, (size, form)| site(start, size, Kind::Boot(form));
    let mut sites = Vec::new();
    // Lists of offsets, each of an instruction, by the size of what is written at most, and its forms.
    let lists = [
        (".retpoline_sites", (JUMP_SIZE, Boot::Indirect)),
        (".return_sites", (CALL_SIZE, Boot::Return)),
        (".call_sites", (CALL_SIZE, Boot::Call)),
        (".ibt_endbr_seal", (ENDBR_SIZE, Boot::Endbr)),
    ];
    let runtime = sections.iter().filter_map(|&(name, start, bytes)| {
        // Constants that are known at boot (arch/x86/include/asm/runtime-const.h).
        let size = match name {
            _ if name.starts_with("runtime_shift_") => (1, Boot::Any),
            _ if name.starts_with("runtime_ptr_") => (8, Boot::Any),
            _ => lists.iter().find(|(list, _)| *list == name)?.1,
        };
        Some((start, bytes, size))
    });
    for (start, bytes, size) in runtime {
        sites.extend(entries(start, bytes).map(|at| boot(at, size)));
    }
    for &(name, start, bytes) in sections {
        match name {
            ".altinstructions" => sites.extend(
                alternatives(start, bytes, btf)
                    .into_iter()
                    .map(|(at, size)| boot(at, (size, Boot::Any))),
            ),
            ".smp_locks" => sites.extend(entries(start, bytes).map(|at| site(at, 1, Kind::Lock))),
            ".parainstructions" => {
                sites.extend(paravirt(bytes).map(|(at, size)| boot(at, (size, Boot::Any))));
            }
            _ => {}
        }
    }
    sites
}

/// `struct alt_instr`, whose form is the kernel's own: place and size of each.
fn alternatives(start: u64, bytes: &[u8], btf: &Btf) -> Vec<(u64, u64)> {
    let size = btf.size_of("alt_instr").unwrap_or_default() as usize;
    let place = btf.offset_of("alt_instr", "instr_offset");
    let length = btf.offset_of("alt_instr", "instrlen");
    let (Ok(place), Ok(length)) = (place, length) else {
        return Vec::new();
    };
    let entries = (0..bytes.len().checked_div(size).unwrap_or(0)).map(|index| index * size);
    entries
        .filter_map(|at| {
            let size = bytes.get(at + length as usize)?;
            Some((
                relative(start, bytes, at + place as usize)?,
                u64::from(*size),
            ))
        })
        .collect()
}

/// `struct paravirt_patch_site` (up to Linux 6.7): address, kind, size.
fn paravirt(bytes: &[u8]) -> impl Iterator<Item = (u64, u64)> {
    bytes.chunks_exact(16).filter_map(|entry| {
        let [_, size] = array_at(entry, 8)?;
        Some((u64_at(entry, 0)?, u64::from(size)))
    })
}

/// `struct jump_entry`: a no-op or jump of two or five bytes.
fn jump_labels((start, bytes): (u64, &[u8])) -> impl Iterator<Item = Site> {
    (0..bytes.len() / JUMP_ENTRY).filter_map(move |index| {
        let at = index * JUMP_ENTRY;
        Some(Site {
            start: relative(start, bytes, at)?,
            size: CALL_SIZE,
            kind: Kind::JumpLabel(relative(start, bytes, at + 4)?),
        })
    })
}

/// `struct static_call_site`.
fn static_calls((start, bytes): (u64, &[u8])) -> impl Iterator<Item = Site> {
    (0..bytes.len() / STATIC_CALL_ENTRY).filter_map(move |index| {
        Some(Site {
            start: relative(start, bytes, index * STATIC_CALL_ENTRY)?,
            size: CALL_SIZE,
            kind: Kind::StaticCall,
        })
    })
}

/// The trampolines of static calls: jumps.
fn trampolines(symbols: &Symbols) -> impl Iterator<Item = Site> {
    let trampolines = symbols.iter().filter(|symbol| is_trampoline(symbol.name));
    trampolines.map(|symbol| Site {
        start: symbol.address,
        size: CALL_SIZE,
        kind: Kind::StaticCall,
    })
}

/// The functions that ftrace can trace: addresses of calls.
fn traced_functions(bytes: &[u8]) -> impl Iterator<Item = Site> {
    let count = length(bytes) / 8;
    (0..count).filter_map(|index| {
        Some(Site {
            start: u64_at(bytes, index as usize * 8)?,
            size: CALL_SIZE,
            kind: Kind::Ftrace,
        })
    })
}
