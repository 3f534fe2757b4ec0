//! Peer of a node: the same kernel and initrd in QEMU's `microvm`, its smallest machine.

mod monitor;

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use testbed::host::machine::qemu;

use crate::inside::{READY, pin};

pub use monitor::Monitor;

/// A boot takes seconds; on a loaded machine, or with KVM inside an emulated one, tens of them.
const LIMIT: Duration = Duration::from_secs(240);

/// Start of the name of a machine's VCPU thread, and interval of polling for it.
const PROCESSOR: &str = "CPU 0/";
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// QEMU's recommendation for the shortest boot (docs/system/i386/microvm.rst), with the serial port
/// that it also names. But the RTC stays: the kernel waits two seconds for one that does not
/// answer.
const MACHINE: &str = "microvm,x-option-roms=off,isa-serial=on,pit=off,pic=off";

/// Option that nodes get as well (see `insula_boot::options`), for a fair comparison.
pub const SHORTER_BOOT: &str = "cryptomgr.notests";

/// Accelerator, with a suitable processor model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Executor {
    /// QEMU translates each instruction, as for the emulated machine.
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

/// A virtual machine to boot, with 256 MiB.
#[derive(Clone, Copy, Debug)]
pub struct Microvm<'a> {
    /// Accelerator.
    pub executor: Executor,
    /// Kernel.
    pub kernel: &'a Path,
    /// Initrd.
    pub initrd: &'a Path,
    /// Frequency of the time stamp counter, in kHz: there is no timer to calibrate it by.
    pub tsc_khz: u32,
    /// Added to its kernel's command line, which names the console and the frequency.
    pub append: &'a str,
    /// Number of its cores.
    pub cores: usize,
    /// Arguments for QEMU: its devices, if any.
    pub devices: &'a [&'a str],
    /// Core of the host that the thread of its first VCPU is bound to, if any. QEMU's other threads, and the
    /// kernel's that serve its devices, are not bound.
    pub core: Option<usize>,
}

impl Microvm<'_> {
    /// Boots it, returns the time from starting QEMU until its init's line has come out of its
    /// serial port, and ends it.
    ///
    /// # Errors
    /// When QEMU cannot be started or ends, or the line does not come.
    pub fn boot(&self) -> io::Result<Duration> {
        let enter = Instant::now();
        let ready = self.start()?.wait_for(READY)?;
        Ok(ready - enter)
    }

    /// Starts it.
    ///
    /// # Errors
    /// When QEMU cannot be started.
    pub fn start(&self) -> io::Result<Running> {
        self.spawn(&mut self.command())
    }

    /// Starts it with a monitor, by which its state can be saved.
    ///
    /// # Errors
    /// When QEMU cannot be started.
    pub fn start_with_monitor(&self) -> io::Result<(Running, Monitor)> {
        let running = self.spawn(self.command().args(monitor::ARGUMENTS))?;
        Ok((running, Monitor::connect()?))
    }

    /// Starts it from its saved state: it goes on where it was.
    ///
    /// # Errors
    /// When QEMU cannot be started.
    pub fn restore(&self, state: &Path) -> io::Result<Running> {
        let incoming = format!("exec:cat {}", state.display());
        self.spawn(self.command().args(["-incoming", &incoming]))
    }

    fn spawn(&self, command: &mut Command) -> io::Result<Running> {
        let mut child = command.spawn()?;
        let console = child.stdout.take();
        let (sender, lines) = mpsc::channel();
        let running = Running { child, lines };
        if let Some(core) = self.core {
            pin(running.processor()?, core)?;
        }
        let console = console.ok_or_else(|| io::Error::other("QEMU's output is not captured"))?;
        // Ends with the console, which ends with QEMU.
        thread::spawn(move || {
            for line in BufReader::new(console).split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line).into_owned();
                if sender.send((Instant::now(), line)).is_err() {
                    break;
                }
            }
        });
        Ok(running)
    }

    fn command(&self) -> Command {
        // Only warnings and init's lines go to the console.
        let append = format!(
            "console=ttyS0 loglevel=5 tsc=reliable tsc_early_khz={} {}",
            self.tsc_khz, self.append
        );
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(qemu());
        // Names its threads.
        command.args(["-name", "microvm,debug-threads=on"]);
        command.args(["-M", MACHINE]);
        command.args(self.executor.arguments());
        command.arg("-smp").arg(self.cores.to_string());
        command.args(["-m", "256M", "-no-reboot", "-nodefaults"]);
        command.args(["-no-user-config", "-display", "none", "-serial", "stdio"]);
        command.args(self.devices);
        command.arg("-kernel").arg(self.kernel);
        command.arg("-initrd").arg(self.initrd);
        command.arg("-append").arg(append.trim_end());
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command
    }
}

/// A running virtual machine, killed when this is dropped.
pub struct Running {
    child: Child,
    lines: Receiver<(Instant, String)>,
}

impl Running {
    /// Thread id of its VCPU.
    fn processor(&self) -> io::Result<i32> {
        let folder = PathBuf::from(format!("/proc/{}/task", self.child.id()));
        let deadline = Instant::now() + LIMIT;
        while Instant::now() < deadline {
            for thread in fs::read_dir(&folder)? {
                let thread = thread?;
                // A thread may have ended.
                let name = fs::read_to_string(thread.path().join("comm")).unwrap_or_default();
                if name.starts_with(PROCESSOR) {
                    let number = thread.file_name();
                    return number.to_string_lossy().parse().map_err(io::Error::other);
                }
            }
            thread::sleep(POLL_INTERVAL);
        }
        Err(io::Error::other("the virtual machine has no processor"))
    }

    /// Waits for a line out of its serial port that contains `words`. Returns when it came.
    ///
    /// # Errors
    /// When it does not come, or QEMU ends.
    pub fn wait_for(&mut self, words: &str) -> io::Result<Instant> {
        self.next_with(words).map(|(when, _)| when)
    }

    /// The next line out of its serial port that contains `words`, and when it came.
    ///
    /// # Errors
    /// When it does not come, or QEMU ends.
    pub fn next_with(&mut self, words: &str) -> io::Result<(Instant, String)> {
        let deadline = Instant::now() + LIMIT;
        let mut last = String::new();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok((when, line)) if line.contains(words) => return Ok((when, line)),
                Ok((_, line)) => last = line,
                Err(error) => {
                    return Err(io::Error::other(format!(
                        "the virtual machine did not say `{words}`: {error}; its last line: {last}"
                    )));
                }
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
