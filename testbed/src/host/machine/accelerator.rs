//! Execution of the emulated machine: TCG or KVM.

use std::fmt;
use std::fs::{self, File};
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use super::{Machine, Task, qemu};
use crate::host::kernels::{Flavour, Sanitizer};
use crate::host::payload::Payload;
use crate::host::project;
use crate::host::tool::{Tool, ToolError};

/// Device file of KVM.
const KVM_DEVICE: &str = "/dev/kvm";
/// Time limit of the trial boot. With KVM a boot takes 2 s; where KVM does not work, it hangs.
const SMOKE_LIMIT: Duration = Duration::from_secs(30);

/// QEMU's accelerator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accelerator {
    /// QEMU translates each instruction and runs all cores in turn. Works everywhere.
    Tcg,
    /// The same with a thread for each core (MTTCG): faster where several cores have work, but see
    /// `emulator_fault`. For measurements.
    TcgParallel,
    /// The host's processor, by KVM.
    Kvm,
}

/// The text names no accelerator.
#[derive(Debug, thiserror::Error)]
#[error("there is no accelerator `{0}`; there are tcg, tcg-parallel and kvm")]
pub struct UnknownAccelerator(String);

impl Accelerator {
    /// KVM if a machine boots with it, else TCG: with a thread for each core if the kernel has a
    /// sanitizer for races. The first call tries this out; the result is kept until the host's
    /// kernel or QEMU changes.
    ///
    /// # Errors
    /// When QEMU is not installed.
    pub fn detect(kernel: Flavour, progress: &mut dyn FnMut(&str)) -> Result<Self, ToolError> {
        Ok(match Self::detect_usual(kernel, progress)? {
            Self::Tcg if kernel.sanitizer() == Some(Sanitizer::Races) => Self::TcgParallel,
            usual => usual,
        })
    }

    fn detect_usual(kernel: Flavour, progress: &mut dyn FnMut(&str)) -> Result<Self, ToolError> {
        if File::options()
            .read(true)
            .write(true)
            .open(KVM_DEVICE)
            .is_err()
        {
            return Ok(Self::Tcg);
        }
        let note = project::build().join("accelerator");
        let host = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let qemu = Tool::new(&qemu().to_string_lossy())
            .arg("--version")
            .run()?;
        let circumstances = format!("{host}{qemu}");
        if let Some(known) = read_note(&note, &circumstances) {
            return Ok(known);
        }
        progress("testing whether KVM works (once)");
        let machine = Machine {
            accelerator: Self::Kvm,
            limit: SMOKE_LIMIT,
            ..Machine::new(kernel)
        };
        let task = Task::Command(vec!["true".to_owned()]);
        let outcome = machine.run(&task, &Payload::default(), false, progress);
        let works = outcome.is_ok_and(|outcome| outcome.status == Some(0));
        let found = if works { Self::Kvm } else { Self::Tcg };
        progress(if works {
            "KVM works and is used"
        } else {
            "KVM does not work; machines are emulated"
        });
        // If the result cannot be written, the next call tries again.
        let _ = fs::write(&note, format!("{found}\n{circumstances}"));
        Ok(found)
    }
}

/// Earlier result, if it was found under the same circumstances.
fn read_note(note: &Path, circumstances: &str) -> Option<Accelerator> {
    let text = fs::read_to_string(note).ok()?;
    let (name, rest) = text.split_once('\n')?;
    (rest == circumstances).then(|| name.parse().ok())?
}

impl fmt::Display for Accelerator {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Tcg => "tcg",
            Self::TcgParallel => "tcg-parallel",
            Self::Kvm => "kvm",
        })
    }
}

impl FromStr for Accelerator {
    type Err = UnknownAccelerator;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "tcg" => Ok(Self::Tcg),
            "tcg-parallel" => Ok(Self::TcgParallel),
            "kvm" => Ok(Self::Kvm),
            _ => Err(UnknownAccelerator(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back() {
        for accelerator in [Accelerator::Tcg, Accelerator::TcgParallel, Accelerator::Kvm] {
            assert_eq!(
                accelerator.to_string().parse::<Accelerator>().unwrap(),
                accelerator
            );
        }
        assert!("hvf".parse::<Accelerator>().is_err());
    }

    #[test]
    fn note_holds_only_under_its_circumstances() {
        let folder = tempfile::tempdir().unwrap();
        let note = folder.path().join("note");
        assert_eq!(read_note(&note, "a\n"), None);
        fs::write(&note, "kvm\na\nb\n").unwrap();
        assert_eq!(read_note(&note, "a\nb\n"), Some(Accelerator::Kvm));
        assert_eq!(read_note(&note, "a\nc\n"), None);
    }
}
