//! What a program finds on its stack when it begins: arguments, environment, auxiliary vector.
//!
//! Source: System V ABI, AMD64 supplement, section 3.4.1 "Initial stack and register state".

use alloc::vec::Vec;

/// Types of auxiliary entries (include/uapi/linux/auxvec.h of Linux).
pub mod auxiliary {
    /// End of the vector.
    pub const NULL: u64 = 0;
    /// Address of the program headers.
    pub const PHDR: u64 = 3;
    /// Size of one.
    pub const PHENT: u64 = 4;
    /// How many there are.
    pub const PHNUM: u64 = 5;
    /// Page size.
    pub const PAGESZ: u64 = 6;
    /// Where the interpreter lies.
    pub const BASE: u64 = 7;
    /// Flags: none.
    pub const FLAGS: u64 = 8;
    /// The program's first instruction.
    pub const ENTRY: u64 = 9;
    /// User and group, real and effective.
    pub const UID: u64 = 11;
    /// See above.
    pub const EUID: u64 = 12;
    /// See above.
    pub const GID: u64 = 13;
    /// See above.
    pub const EGID: u64 = 14;
    /// Name of the processor's kind.
    pub const PLATFORM: u64 = 15;
    /// What the processor can do.
    pub const HWCAP: u64 = 16;
    /// Ticks of times(2) in a second.
    pub const CLKTCK: u64 = 17;
    /// Whether the program got rights by being run.
    pub const SECURE: u64 = 23;
    /// Address of 16 random bytes.
    pub const RANDOM: u64 = 25;
    /// More of what the processor can do.
    pub const HWCAP2: u64 = 26;
    /// Bytes of the area of restartable sequences that are used.
    pub const RSEQ_FEATURE_SIZE: u64 = 27;
    /// How it is aligned.
    pub const RSEQ_ALIGN: u64 = 28;
    /// Address of the program's path.
    pub const EXECFN: u64 = 31;
    /// Where the object with the clocks lies.
    pub const SYSINFO_EHDR: u64 = 33;
    /// Least size of a stack for signals.
    pub const MINSIGSTKSZ: u64 = 51;
}

/// What a program is started with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arguments {
    /// Its path.
    pub path: Vec<u8>,
    /// Its arguments, the first is its name.
    pub arguments: Vec<Vec<u8>>,
    /// Its environment.
    pub environment: Vec<Vec<u8>>,
}

impl Arguments {
    /// Reads what the base gives: path, both numbers in decimal digits, then all strings, each
    /// ended by a NUL. `None` if it is anything else.
    #[must_use]
    pub fn read(block: &[u8]) -> Option<Self> {
        let mut strings = block.strip_suffix(b"\0")?.split(|&byte| byte == 0);
        let path = strings.next()?.to_vec();
        let mut number = || {
            core::str::from_utf8(strings.next()?)
                .ok()?
                .parse::<usize>()
                .ok()
        };
        let (arguments, environment) = (number()?, number()?);
        let rest: Vec<Vec<u8>> = strings.map(<[u8]>::to_vec).collect();
        if arguments.checked_add(environment)? != rest.len() {
            return None;
        }
        let mut arguments_list = rest;
        let environment = arguments_list.split_off(arguments);
        Some(Self {
            path,
            arguments: arguments_list,
            environment,
        })
    }
}

/// The bytes of a stack, and the stack pointer to begin with; the bytes lie from there up to `top`.
#[must_use]
pub fn build(
    top: u64,
    with: &Arguments,
    random: [u8; 16],
    entries: &[(u64, u64)],
) -> (u64, Vec<u8>) {
    let mut strings = Strings {
        top,
        next: top - 8,
        placed: Vec::new(),
    };
    let path = strings.place(&with.path);
    let environment: Vec<u64> = with
        .environment
        .iter()
        .map(|one| strings.place(one))
        .collect();
    let arguments: Vec<u64> = with
        .arguments
        .iter()
        .map(|one| strings.place(one))
        .collect();
    let platform = strings.place(b"x86_64");
    strings.next &= !15;
    let random = strings.place_bytes(&random);
    let mut words = alloc::vec![arguments.len() as u64];
    words.extend(arguments.iter().chain(&[0]));
    words.extend(environment.iter().chain(&[0]));
    let own = [
        (auxiliary::RANDOM, random),
        (auxiliary::EXECFN, path),
        (auxiliary::PLATFORM, platform),
        (auxiliary::NULL, 0),
    ];
    words.extend(
        entries
            .iter()
            .chain(&own)
            .flat_map(|&(kind, value)| [kind, value]),
    );
    let start = (strings.next - 8 * words.len() as u64) & !15;
    let mut bytes = alloc::vec![0; (top - start) as usize];
    for (word, place) in words.iter().zip(bytes.chunks_exact_mut(8)) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    for (address, string) in strings.placed {
        let at = (address - start) as usize;
        bytes[at..at + string.len()].copy_from_slice(&string);
    }
    (start, bytes)
}

/// Strings, placed from the top down.
struct Strings {
    top: u64,
    next: u64,
    placed: Vec<(u64, Vec<u8>)>,
}

impl Strings {
    fn place(&mut self, string: &[u8]) -> u64 {
        self.next -= 1;
        self.place_bytes(string)
    }

    fn place_bytes(&mut self, bytes: &[u8]) -> u64 {
        debug_assert!(self.next <= self.top);
        self.next -= bytes.len() as u64;
        self.placed.push((self.next, bytes.to_vec()));
        self.next
    }
}

#[cfg(test)]
mod tests {
    use std::vec;

    use super::*;

    fn arguments() -> Arguments {
        Arguments::read(b"/bin/echo\x002\x001\x00echo\x00hello\x00A=b\0").unwrap()
    }

    #[test]
    fn a_block_is_read() {
        let read = arguments();
        assert_eq!(read.path, b"/bin/echo");
        assert_eq!(read.arguments, [b"echo".to_vec(), b"hello".to_vec()]);
        assert_eq!(read.environment, [b"A=b".to_vec()]);
        for bad in [
            &b""[..],
            b"x",
            b"x\0",
            b"x\x001\x001\x00a\0",
            b"x\0-1\x001\0",
            b"x\x000\x00z\0",
        ] {
            assert_eq!(Arguments::read(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn a_stack_is_as_the_abi_says() {
        let top = 0x7fff_0000_0000;
        let (start, bytes) = build(top, &arguments(), [7; 16], &[(auxiliary::PAGESZ, 4096)]);
        assert!(start.is_multiple_of(16) && start + bytes.len() as u64 == top);
        let word = |index: usize| {
            let place = bytes[8 * index..].first_chunk().unwrap();
            u64::from_le_bytes(*place)
        };
        let string = |address: u64| {
            let from = (address - start) as usize;
            bytes[from..]
                .split(|&byte| byte == 0)
                .next()
                .unwrap()
                .to_vec()
        };
        assert_eq!(word(0), 2);
        assert_eq!(
            [string(word(1)), string(word(2))],
            [b"echo".to_vec(), b"hello".to_vec()]
        );
        assert_eq!((word(3), word(5)), (0, 0));
        assert_eq!(string(word(4)), b"A=b");
        let pairs: vec::Vec<(u64, u64)> = (6..)
            .step_by(2)
            .map(|at| (word(at), word(at + 1)))
            .take_while(|pair| pair.0 != auxiliary::NULL)
            .collect();
        let value = |kind| pairs.iter().find(|pair| pair.0 == kind).unwrap().1;
        assert_eq!(value(auxiliary::PAGESZ), 4096);
        assert_eq!(string(value(auxiliary::EXECFN)), b"/bin/echo");
        assert_eq!(string(value(auxiliary::PLATFORM)), b"x86_64");
        let random = (value(auxiliary::RANDOM) - start) as usize;
        assert_eq!(bytes[random..random + 16], [7; 16]);
    }
}
