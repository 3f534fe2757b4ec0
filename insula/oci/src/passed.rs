//! What a process of the ordinary runtime inherits beside its standard streams: a descriptor of what it is to work with, and
//! one of the program that it executes, `insula-proxy`, since a container has neither; and one more where it is to tell something.
//!
//! The program is a copy in memory, which nobody can write.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use command_fds::FdMapping;
use insula_base::error::Error;
use insula_image::proxy;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use super::arguments::Arguments;

/// Option of the ordinary runtime: how many descriptors a process inherits.
const PRESERVE: &str = "--preserve-fds";
/// The first of them.
const FIRST: i32 = 3;
/// Seals of a program that nobody is to change.
const SEALS: SealFlags = SealFlags::SEAL
    .union(SealFlags::SHRINK)
    .union(SealFlags::GROW)
    .union(SealFlags::WRITE);

/// The descriptors: behind those of the container's engine.
pub(super) struct Passed {
    /// Number of the first of ours.
    first: i32,
    /// How many are ours.
    count: i32,
}

impl Passed {
    /// Those of a process that this command line starts.
    pub(super) fn of(arguments: &Arguments) -> Self {
        let given = arguments.value(&[PRESERVE]);
        let given = given.and_then(|count| count.to_string_lossy().parse::<u16>().ok());
        Self {
            first: FIRST + i32::from(given.unwrap_or_default()),
            count: 2,
        }
    }

    /// With one more.
    pub(super) fn and_another(self) -> Self {
        let count = self.count + 1;
        Self { count, ..self }
    }

    /// Number of the last.
    pub(super) fn last(&self) -> i32 {
        self.first + self.count - 1
    }

    /// The command line that says how many they are.
    pub(super) fn announced(&self, arguments: &Arguments) -> Arguments {
        let count = OsString::from((self.first - FIRST + self.count).to_string());
        arguments.with_option(PRESERVE, &count, &[PRESERVE])
    }

    /// Number of the descriptor of what the process is to work with.
    pub(super) fn number(&self) -> i32 {
        self.first
    }

    /// The words by which the process executes the program with these arguments.
    pub(super) fn words(&self, arguments: &[&str]) -> Vec<String> {
        let program = format!("/proc/self/fd/{}", self.first + 1);
        let arguments = arguments.iter().map(ToString::to_string);
        [program].into_iter().chain(arguments).collect()
    }

    /// The descriptors themselves, given that of what the process is to work with, and the others behind the program's.
    ///
    /// # Errors
    /// The program cannot be copied.
    pub(super) fn mappings(
        &self,
        descriptor: OwnedFd,
        others: impl IntoIterator<Item = OwnedFd>,
    ) -> Result<Vec<FdMapping>, Error> {
        let descriptors = [descriptor, sealed_proxy()?].into_iter().chain(others);
        let mappings = descriptors.zip(self.first..);
        Ok(mappings
            .map(|(parent_fd, child_fd)| FdMapping {
                parent_fd,
                child_fd,
            })
            .collect())
    }
}

/// A copy of `insula-proxy` in memory, which no container can change.
fn sealed_proxy() -> Result<OwnedFd, Error> {
    let path = proxy();
    let copy = || {
        let mut program = File::open(&path)?;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let mut copy = File::from(memfd_create("insula-proxy", flags)?);
        io::copy(&mut program, &mut copy)?;
        fcntl_add_seals(copy.as_fd(), SEALS)?;
        Ok::<_, io::Error>(copy.into())
    };
    copy().map_err(|error| {
        let what = format!("{} cannot be copied", path.display());
        Error::new(what).because(error).untouched()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(words: &[&str]) -> (Passed, String) {
        let arguments = Arguments::parse(words.iter().map(OsString::from));
        let passed = Passed::of(&arguments);
        let announced = passed.announced(&arguments);
        let count = announced.value(&[PRESERVE]).unwrap_or_default();
        let count = count.to_string_lossy().into_owned();
        (passed, count)
    }

    #[test]
    fn descriptors_follow_those_of_the_engine() {
        let (alone, count) = passed(&["create", "web"]);
        assert_eq!((alone.number(), count.as_str()), (3, "2"));
        assert_eq!(alone.words(&["web"]), ["/proc/self/fd/4", "web"]);
        let (behind, count) = passed(&["create", "--preserve-fds=3", "web"]);
        assert_eq!((behind.number(), count.as_str()), (6, "5"));
        assert_eq!(behind.words(&["web"]), ["/proc/self/fd/7", "web"]);
        assert_eq!((behind.last(), behind.and_another().last()), (7, 8));
    }
}
