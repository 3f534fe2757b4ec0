//! What a benchmark can use inside the emulated machine.

mod bundle;
mod container;
mod cores;
mod disk;
mod guest;
mod insula;
mod lines;
mod living;
mod network_guest;
mod others;
mod peer;
mod probe;
mod ready;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ::insula::driver::Driver;
use testbed::scenario::{Context, Finding};

pub use bundle::Bundle;
pub use container::Container;
pub use cores::OtherCore;
pub use disk::{drop_caches, read_rate};
pub use guest::Guest;
pub use insula::{Command, Start, Timing};
pub use lines::lines;
pub use living::{
    BUSYBOX, CONTAINER, FOLDER, INSIDE_PROBE, output_of, podman, probed_s, run, run_lines,
    run_to_line,
};
pub use network_guest::{GUEST_ADDRESS, NetworkGuest};
pub use others::{Events, Pipes, PolledRings, pin};
pub use peer::Peer;
pub use probe::{PROBE, Place, Quiet, output, program};
pub use ready::{READY, wait_for_line, wait_until_ready};

use crate::microvm::{Executor, Microvm, SHORTER_BOOT};
use crate::samples::Recorder;

/// Where the command is measured from: a file system in memory, so that only the kernel and the
/// initrd come from a disk, also when the caches are empty.
const COMMAND: &str = "/run/command/bin/insula";
/// Where it looks for what comes with it.
const COMPANIONS: &str = "/run/command/lib";
/// Where its libraries are kept for those who ask for it, in memory as well.
const LIBRARIES: &str = "/run/command/libraries";
/// Where the test bed puts both.
const PAYLOAD_COMMAND: &str = "/payload/bin/insula";
const PAYLOAD_COMPANIONS: &str = "/payload/lib";

/// What a benchmark can use.
pub struct Inside {
    /// How often to measure each thing.
    pub count: u32,
    /// The command `insula`.
    pub command: Command,
    /// The module, for what the command does not tell.
    pub driver: Driver,
    machine: Context,
    recorder: Recorder,
}

impl Inside {
    /// On this machine, which must be one of the test bed's with insula.ko loaded.
    ///
    /// # Errors
    /// When it is not.
    pub fn new(count: u32, results: &Path) -> Result<Self, Finding> {
        let command = Path::new(COMMAND);
        command.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::copy(PAYLOAD_COMMAND, command)?;
        symlink(PAYLOAD_COMPANIONS, COMPANIONS)?;
        Ok(Self {
            count,
            command: Command::new(command.into()),
            driver: Driver::open()?,
            machine: Context::new(false, results),
            recorder: Recorder::new(results)?,
        })
    }

    /// Keeps a time, in milliseconds, or another value in its row's unit.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn record(&self, id: &str, value: impl IntoValue) -> Result<(), Finding> {
        Ok(self.recorder.record(id, value.into_value())?)
    }

    /// The kernel whose version begins so, as 6.12.
    ///
    /// # Errors
    /// When there is none.
    pub fn kernel(&self, version: &str) -> Result<PathBuf, Finding> {
        self.machine.kernel(version)
    }

    /// Puts the libraries that the command is linked to where it is, in memory, so that a start
    /// with empty caches reads nothing from the disk but what it is measured for.
    ///
    /// # Errors
    /// When they are not found, or cannot be put there.
    pub fn keep_libraries_in_memory(&self) -> Result<(), Finding> {
        fs::create_dir_all(LIBRARIES)?;
        let told = output_of(std::process::Command::new("ldd").arg(COMMAND))?;
        let libraries = libraries(&told).chain(["/etc/ld.so.cache"]);
        for library in libraries {
            let path = fs::canonicalize(library)?;
            let name = path.file_name().unwrap_or_default();
            let copy = Path::new(LIBRARIES).join(name);
            fs::copy(&path, &copy)?;
            let mut mount = std::process::Command::new("mount");
            run(mount.arg("--bind").arg(&copy).arg(&path))?;
        }
        Ok(())
    }

    /// Loads what executes virtual machines inside the emulated one.
    ///
    /// # Errors
    /// When it does not load.
    pub fn load_kvm(&self) -> Result<(), Finding> {
        run(std::process::Command::new("modprobe").arg("kvm_amd")).map(drop)
    }

    /// Boots the kernel whose version begins so with the test nodes' initrd in a virtual machine
    /// inside the emulated one. Answers the time to its init's line.
    ///
    /// # Errors
    /// When it does not come up.
    pub fn boot_in_kvm(&self, version: &str) -> Result<Duration, Finding> {
        let (machine, _) = self.driver.machine()?;
        let took = Microvm {
            executor: Executor::Kvm,
            kernel: &self.kernel(version)?,
            initrd: self.initrd(),
            tsc_khz: machine.tsc_khz,
            append: SHORTER_BOOT,
            devices: &[],
            core: None,
        }
        .boot()?;
        Ok(took)
    }

    /// The test nodes' initial file system.
    #[must_use]
    pub fn initrd(&self) -> &'static Path {
        self.machine.node_initrd()
    }

    /// Makes a kernel and the test nodes' initrd resident under `name`, in the form that `layout`
    /// names (see `insula image add --help`).
    ///
    /// # Errors
    /// When the command fails.
    pub fn add_image(&self, name: &str, version: &str, layout: &str) -> Result<(), Finding> {
        let (kernel, initrd) = (self.kernel(version)?, self.initrd());
        let (kernel, initrd) = (kernel.to_string_lossy(), initrd.to_string_lossy());
        let files = ["--kernel", &kernel, "--initrd", &initrd];
        let words = [&["image", "add", name, "--layout", layout], &files[..]].concat();
        self.command.run(&words).map(drop)
    }
}

/// The paths in what ldd(1) tells of a program.
fn libraries(told: &str) -> impl Iterator<Item = &str> {
    told.split_ascii_whitespace()
        .filter(|word| word.starts_with('/'))
}

/// What can be recorded.
pub trait IntoValue {
    /// As a plain number.
    fn into_value(self) -> f64;
}

impl IntoValue for f64 {
    fn into_value(self) -> f64 {
        self
    }
}

impl IntoValue for Duration {
    /// In milliseconds.
    fn into_value(self) -> f64 {
        self.as_secs_f64() * 1e3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_found_in_what_ldd_tells() {
        let told = "\tlinux-vdso.so.1 (0x00007ffc)\n\
                    \tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        let found: Vec<_> = libraries(told).collect();
        assert_eq!(
            found,
            [
                "/lib/x86_64-linux-gnu/libc.so.6",
                "/lib64/ld-linux-x86-64.so.2"
            ]
        );
    }
}
