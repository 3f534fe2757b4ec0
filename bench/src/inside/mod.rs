//! Means of a benchmark inside the emulated machine.

mod agent_node;
mod bundle;
mod container;
mod cores;
mod disk;
mod files_guest;
mod guest;
mod insula;
mod lines;
mod namespace;
mod network_guest;
mod others;
mod peer;
mod probe;
mod ready;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use insula_driver::Driver;
use testbed::base::{Context, Finding};

pub use agent_node::{
    BUSYBOX, CONTAINER, FOLDER, INSIDE_PROBE, output_of, podman, probed_s, run, run_lines,
    run_to_line,
};
pub use bundle::Bundle;
pub use container::Container;
pub use cores::OtherCore;
pub use disk::{SPARE_DISK, drop_caches, read_rate, spare_disk};
pub use files_guest::FilesGuest;
pub use guest::Guest;
pub use insula::{Command, Start, Timing};
pub use lines::lines;
pub use namespace::{NAMESPACE_ADDRESS, in_namespace, make_namespace};
pub use network_guest::{GUEST_ADDRESS, NetworkGuest};
pub use others::{Events, Pipes, PolledRings, pin};
pub use peer::Peer;
pub use probe::{LwkNode, NODE, PROBE, Place, Round, measured, output, program};
pub use ready::{READY, wait_for_line, wait_until_ready};

use crate::microvm::{Executor, Microvm, SHORTER_BOOT};
use crate::samples::Recorder;

/// Path of the command: on a tmpfs, so that only the kernel and the initrd are read from a disk,
/// also when the caches are empty.
pub const COMMAND: &str = "/run/command/bin/insula";
/// Folder with the files that come with it.
const COMPANIONS: &str = "/run/command/lib";
/// Folder for its libraries, in memory as well.
const LIBRARIES: &str = "/run/command/libraries";
/// Both in the testbed's payload.
const PAYLOAD_COMMAND: &str = "/payload/bin/insula";
const PAYLOAD_COMPANIONS: &str = "/payload/lib";

/// Means of a benchmark.
pub struct Inside {
    /// Measurements of each row.
    pub count: u32,
    /// The command `insula`.
    pub command: Command,
    /// The module, for data that the command does not print.
    pub driver: Driver,
    machine: Context,
    recorder: Recorder,
}

impl Inside {
    /// Prepares this machine, which must be one of the testbed's with insula.ko loaded.
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

    /// Records a time, in milliseconds, or another value in its row's unit.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn record(&self, id: &str, value: impl IntoValue) -> Result<(), Finding> {
        Ok(self.recorder.record(id, value.into_value())?)
    }

    /// Path of the kernel whose version starts with `version`, as 6.12.
    ///
    /// # Errors
    /// When there is none.
    pub fn kernel(&self, version: &str) -> Result<PathBuf, Finding> {
        self.machine.kernel(version)
    }

    /// Copies the command's libraries to memory, so that a start with empty caches reads only
    /// kernel and initrd from the disk.
    ///
    /// # Errors
    /// When they are not found, or cannot be copied.
    pub fn keep_libraries_in_memory(&self) -> Result<(), Finding> {
        fs::create_dir_all(LIBRARIES)?;
        let output = output_of(std::process::Command::new("ldd").arg(COMMAND))?;
        let libraries = libraries(&output).chain(["/etc/ld.so.cache"]);
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

    /// Loads KVM inside the emulated machine.
    ///
    /// # Errors
    /// When it does not load.
    pub fn load_kvm(&self) -> Result<(), Finding> {
        run(std::process::Command::new("modprobe").arg("kvm_amd")).map(drop)
    }

    /// Boots the kernel whose version starts with `version` with the test nodes' initrd in a
    /// virtual machine inside the emulated one. Returns the time to its init's line.
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
            cores: 1,
            devices: &[],
            core: None,
        }
        .boot()?;
        Ok(took)
    }

    /// Initial file system of the test nodes.
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

/// Paths in the output of ldd(1).
fn libraries(output: &str) -> impl Iterator<Item = &str> {
    output
        .split_ascii_whitespace()
        .filter(|word| word.starts_with('/'))
}

/// Values that can be recorded.
pub trait IntoValue {
    /// The value as a plain number.
    fn into_value(self) -> f64;
}

impl IntoValue for f64 {
    fn into_value(self) -> f64 {
        self
    }
}

impl IntoValue for Duration {
    /// The time in milliseconds.
    fn into_value(self) -> f64 {
        self.as_secs_f64() * 1e3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_found_in_the_output_of_ldd() {
        let output = "\tlinux-vdso.so.1 (0x00007ffc)\n\
                    \tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        let found: Vec<_> = libraries(output).collect();
        assert_eq!(
            found,
            [
                "/lib/x86_64-linux-gnu/libc.so.6",
                "/lib64/ld-linux-x86-64.so.2"
            ]
        );
    }
}
