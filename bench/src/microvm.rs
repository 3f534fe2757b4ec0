//! The peer of a node: the same kernel and initrd in QEMU's `microvm`, its smallest machine, as
//! people start a kernel beside another today.

use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::inside::READY;

/// A boot takes seconds; on a loaded machine, or with KVM inside of an emulated one, tens of them.
const LIMIT: Duration = Duration::from_secs(240);

/// As QEMU's documentation has it for the shortest boot (docs/system/i386/microvm.rst), with the
/// serial port that it also names. But it keeps its clock (RTC): the kernel waits two seconds for one
/// that does not answer.
const MACHINE: &str = "microvm,x-option-roms=off,isa-serial=on,pit=off,pic=off";

/// What executes it, with the processor that fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Executor {
    /// QEMU translates each instruction, as it does for the emulated machine.
    Tcg,
    /// KVM.
    Kvm,
}

impl Executor {
    fn arguments(self) -> [&'static str; 4] {
        match self {
            Self::Tcg => ["-accel", "tcg", "-cpu", "max,-erms,-fsrm"],
            Self::Kvm => ["-accel", "kvm", "-cpu", "host"],
        }
    }
}

/// A virtual machine to boot: one core, 256 MiB.
#[derive(Clone, Copy, Debug)]
pub struct Microvm<'a> {
    /// What executes it.
    pub executor: Executor,
    /// Its kernel.
    pub kernel: &'a Path,
    /// Its initrd.
    pub initrd: &'a Path,
    /// The frequency of the time stamp counter, in kHz: there is no timer to measure it by.
    pub tsc_khz: u32,
    /// Added to its kernel's command line, which names the console and the frequency.
    pub append: &'a str,
}

impl Microvm<'_> {
    /// Boots it and answers the time from starting QEMU until its init's line has come out of its
    /// serial port. Then it is ended.
    ///
    /// # Errors
    /// When QEMU cannot be started or ends, or the line does not come.
    pub fn boot(&self) -> io::Result<Duration> {
        let enter = Instant::now();
        let mut child = self.command().spawn()?;
        let answer = wait(&mut child, enter);
        child.kill()?;
        child.wait()?;
        answer
    }

    fn command(&self) -> Command {
        // Only warnings and what init says go to the console.
        let append = format!(
            "console=ttyS0 loglevel=5 tsc=reliable tsc_early_khz={} {}",
            self.tsc_khz, self.append
        );
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "qemu-system-x86_64"]);
        command.args(["-M", MACHINE]);
        command.args(self.executor.arguments());
        command.args(["-smp", "1", "-m", "256M", "-no-reboot", "-nodefaults"]);
        command.args(["-no-user-config", "-display", "none", "-serial", "stdio"]);
        command.arg("-kernel").arg(self.kernel);
        command.arg("-initrd").arg(self.initrd);
        command.arg("-append").arg(append.trim_end());
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command
    }
}

fn wait(child: &mut Child, enter: Instant) -> io::Result<Duration> {
    let Some(console) = child.stdout.take() else {
        return Err(io::Error::other("QEMU's output is not captured"));
    };
    let (told, ready) = mpsc::channel();
    // Ends with the console, which ends with QEMU.
    thread::spawn(move || {
        // Nobody listens any more if patience is at its end.
        let _ = told.send(find_ready(console).map(|()| enter.elapsed()));
    });
    let late = |_| io::Error::other("the virtual machine's init said nothing in time");
    ready.recv_timeout(LIMIT).map_err(late)?
}

fn find_ready(console: ChildStdout) -> io::Result<()> {
    let mut last = String::new();
    for line in BufReader::new(console).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        if line.contains(READY) {
            return Ok(());
        }
        last = line;
    }
    Err(io::Error::other(format!(
        "the virtual machine ended before its init spoke; its last line: {last}"
    )))
}
