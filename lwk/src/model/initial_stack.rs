//! Initial stack of a program: arguments, environment, auxiliary vector.
//!
//! Source: System V ABI, AMD64 supplement, section 3.4.1 "Initial stack and register state".

use alloc::vec::Vec;

use crate::hw::memory::room::{reserve_in, zeroed};
use crate::model::errno::Errno;

/// Types of auxiliary vector entries (include/uapi/linux/auxvec.h of Linux).
pub mod auxiliary {
    /// End of the vector.
    pub const NULL: u64 = 0;
    /// Address of the program headers.
    pub const PHDR: u64 = 3;
    /// Size of a program header.
    pub const PHENT: u64 = 4;
    /// Number of program headers.
    pub const PHNUM: u64 = 5;
    /// Page size.
    pub const PAGESZ: u64 = 6;
    /// Load address of the interpreter.
    pub const BASE: u64 = 7;
    /// Flags: 0.
    pub const FLAGS: u64 = 8;
    /// Entry point of the program.
    pub const ENTRY: u64 = 9;
    /// Real user id.
    pub const UID: u64 = 11;
    /// Effective user id.
    pub const EUID: u64 = 12;
    /// Real group id.
    pub const GID: u64 = 13;
    /// Effective group id.
    pub const EGID: u64 = 14;
    /// Name of the platform.
    pub const PLATFORM: u64 = 15;
    /// CPU capabilities.
    pub const HWCAP: u64 = 16;
    /// Frequency of times(2).
    pub const CLKTCK: u64 = 17;
    /// Whether the program is set-user-ID or the like.
    pub const SECURE: u64 = 23;
    /// Address of 16 random bytes.
    pub const RANDOM: u64 = 25;
    /// Further CPU capabilities.
    pub const HWCAP2: u64 = 26;
    /// Size of the supported fields of `struct rseq`.
    pub const RSEQ_FEATURE_SIZE: u64 = 27;
    /// Alignment of `struct rseq`.
    pub const RSEQ_ALIGN: u64 = 28;
    /// Path of the program.
    pub const EXECFN: u64 = 31;
    /// Address of the vDSO.
    pub const SYSINFO_EHDR: u64 = 33;
    /// Minimum size of a signal stack.
    pub const MINSIGSTKSZ: u64 = 51;
}

/// NUL-terminated strings, one after the other, as on a program's stack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Strings {
    bytes: Vec<u8>,
    count: usize,
}

impl Strings {
    /// Returns the number of strings.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Adds a string that `write` appends to the bytes.
    ///
    /// # Errors
    /// Those of `write`, and [`Errno::ENOMEM`].
    pub fn add(
        &mut self,
        write: impl FnOnce(&mut Vec<u8>) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        write(&mut self.bytes)?;
        reserve_in(&mut self.bytes, 1)?;
        self.bytes.push(0);
        self.count += 1;
        Ok(())
    }

    /// Adds a string.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub fn push(&mut self, string: &[u8]) -> Result<(), Errno> {
        self.add(|bytes| append(bytes, string))
    }

    /// Replaces the first string, if there is one, by others.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub fn replace_first<'a>(
        &mut self,
        by: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<(), Errno> {
        let mut all = Self::default();
        for string in by {
            all.push(string)?;
        }
        let first = self.bytes.iter().position(|&byte| byte == 0);
        let rest = first.map_or(0, |end| end + 1);
        append(&mut all.bytes, &self.bytes[rest..])?;
        all.count += self.count.saturating_sub(1);
        *self = all;
        Ok(())
    }

    /// Iterates over the strings.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.bytes.split(|&byte| byte == 0).take(self.count)
    }
}

fn append(bytes: &mut Vec<u8>, more: &[u8]) -> Result<(), Errno> {
    reserve_in(bytes, more.len())?;
    bytes.extend_from_slice(more);
    Ok(())
}

/// Path, arguments and environment of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arguments {
    /// Path.
    pub path: Vec<u8>,
    /// Arguments; the first is the program's name.
    pub arguments: Strings,
    /// Environment.
    pub environment: Strings,
    /// Mounted servers: mount point, `=`, name; without a mount point a network server.
    pub mounts: Strings,
}

impl Arguments {
    /// Parses the block that the base gives: path, numbers of arguments, of environment strings and of
    /// mounts in decimal digits, then all strings; each is NUL-terminated.
    ///
    /// # Errors
    /// [`Errno::EINVAL`] if it is malformed; [`Errno::ENOMEM`].
    pub fn read(block: &[u8]) -> Result<Self, Errno> {
        let mut strings = block
            .strip_suffix(b"\0")
            .ok_or(Errno::EINVAL)?
            .split(|&byte| byte == 0);
        let mut path = Vec::new();
        append(&mut path, strings.next().ok_or(Errno::EINVAL)?)?;
        let mut number = || {
            let digits = core::str::from_utf8(strings.next()?).ok()?;
            digits.parse::<usize>().ok()
        };
        let counts = number().zip(number()).zip(number());
        let ((arguments, environment), mounts) = counts.ok_or(Errno::EINVAL)?;
        let mut some = |count: usize| {
            let mut some = Strings::default();
            for _ in 0..count {
                some.push(strings.next().ok_or(Errno::EINVAL)?)?;
            }
            Ok::<_, Errno>(some)
        };
        let (arguments, environment, mounts) =
            (some(arguments)?, some(environment)?, some(mounts)?);
        match strings.next() {
            Some(_) => Err(Errno::EINVAL),
            None => Ok(Self {
                path,
                arguments,
                environment,
                mounts,
            }),
        }
    }
}

/// Builds a stack that ends at `top`. Returns the stack pointer, and the bytes from there on. As on
/// Linux the environment directly follows the arguments: some programs overwrite both to set their
/// title.
///
/// # Errors
/// [`Errno::ENOMEM`].
pub fn build(
    top: u64,
    with: &Arguments,
    random: [u8; 16],
    entries: &[(u64, u64)],
) -> Result<(u64, Vec<u8>), Errno> {
    let (arguments, environment) = (&with.arguments, &with.environment);
    let path = top - 8 - (with.path.len() as u64 + 1);
    let environment_at = path - environment.bytes.len() as u64;
    let arguments_at = environment_at - arguments.bytes.len() as u64;
    let platform = arguments_at - (PLATFORM.len() as u64 + 1);
    let random_at = (platform & !15) - 16;
    let own = [
        (auxiliary::RANDOM, random_at),
        (auxiliary::EXECFN, path),
        (auxiliary::PLATFORM, platform),
        (auxiliary::NULL, 0),
    ];
    let words = 3 + arguments.count + environment.count + 2 * (entries.len() + own.len());
    let start = (random_at - 8 * words as u64) & !15;
    let mut stack = Stack {
        start,
        bytes: zeroed((top - start) as usize)?,
    };
    let mut words = start;
    stack.put_word(&mut words, arguments.count as u64);
    stack.put_addresses(&mut words, arguments, arguments_at);
    stack.put_addresses(&mut words, environment, environment_at);
    for &(kind, value) in entries.iter().chain(&own) {
        stack.put_word(&mut words, kind);
        stack.put_word(&mut words, value);
    }
    stack.put(random_at, &random);
    stack.put(platform, PLATFORM);
    stack.put(arguments_at, &arguments.bytes);
    stack.put(environment_at, &environment.bytes);
    stack.put(path, &with.path);
    Ok((start, stack.bytes))
}

const PLATFORM: &[u8] = b"x86_64";

/// A stack under construction, initially zero.
struct Stack {
    start: u64,
    bytes: Vec<u8>,
}

impl Stack {
    fn put(&mut self, address: u64, bytes: &[u8]) {
        let at = (address - self.start) as usize;
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn put_word(&mut self, at: &mut u64, word: u64) {
        self.put(*at, &word.to_le_bytes());
        *at += 8;
    }

    /// Stores the addresses of the strings, which start at `first`, and a terminating 0.
    fn put_addresses(&mut self, at: &mut u64, strings: &Strings, first: u64) {
        let mut address = first;
        for string in strings.iter() {
            self.put_word(at, address);
            address += string.len() as u64 + 1;
        }
        self.put_word(at, 0);
    }
}

#[cfg(test)]
mod tests {
    use std::vec;

    use super::*;

    fn arguments() -> Arguments {
        Arguments::read(b"/bin/echo\x002\x001\x001\x00echo\x00hello\x00A=b\0/data=file\0").unwrap()
    }

    #[test]
    fn a_block_is_parsed() {
        let read = arguments();
        assert_eq!(read.path, b"/bin/echo");
        let strings = |of: &Strings| of.iter().map(<[u8]>::to_vec).collect::<Vec<_>>();
        assert_eq!(strings(&read.arguments), [&b"echo"[..], b"hello"]);
        assert_eq!(strings(&read.environment), [b"A=b"]);
        for bad in [
            &b""[..],
            b"x",
            b"x\0",
            b"x\x001\x001\x000\x00a\0",
            b"x\0-1\x001\x000\0",
            b"x\x000\x00z\x000\0",
        ] {
            assert_eq!(Arguments::read(bad), Err(Errno::EINVAL), "{bad:?}");
        }
    }

    #[test]
    fn the_first_string_is_replaced_by_others() {
        let mut strings = Strings::default();
        strings.replace_first([&b"a"[..]]).unwrap();
        for more in [&b"b"[..], b"", b"c"] {
            strings.push(more).unwrap();
        }
        strings.replace_first([&b"x"[..], b"y"]).unwrap();
        let all: Vec<_> = strings.iter().collect();
        assert_eq!(all, [&b"x"[..], b"y", b"b", b"", b"c"]);
        assert_eq!(strings.count(), 5);
    }

    #[test]
    fn the_stack_is_as_the_abi_says() {
        let top = 0x7fff_0000_0000;
        let (start, bytes) =
            build(top, &arguments(), [7; 16], &[(auxiliary::PAGESZ, 4096)]).unwrap();
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
        // One after the other, in order.
        assert_eq!([word(2) - word(1), word(4) - word(2)], [5, 6]);
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
