//! What executes the emulated machine.

use std::fmt;
use std::fs::{self, File};
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use super::{Machine, Task, qemu};
use crate::kernels::{Flavour, Sanitizer};
use crate::payload::Payload;
use crate::project;
use crate::tool::{Tool, ToolError};

/// Where this machine's virtualisation is offered.
const KVM_DEVICE: &str = "/dev/kvm";
/// With KVM a boot takes 2 s; where it does not work, it hangs.
const SMOKE_LIMIT: Duration = Duration::from_secs(30);

/// What executes the emulated machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accelerator {
    /// QEMU translates each instruction and executes all cores in turn. Works
    /// everywhere.
    Tcg,
    /// The same with all cores at once: faster where several have work, but see
    /// [`super::emulator_fault`]. For measurements.
    TcgParallel,
    /// This machine's processor, by KVM.
    Kvm,
}

/// The text names no accelerator.
#[derive(Debug, thiserror::Error)]
#[error("there is no accelerator `{0}`; there are tcg, tcg-parallel and kvm")]
pub struct UnknownAccelerator(String);

impl Accelerator {
    /// KVM if a machine has been seen to boot with it, else TCG: with all cores at once for a
    /// kernel that is to see them meet. The first time this is tried out; the answer is kept until
    /// the kernel here, or QEMU, is another.
    ///
    /// # Errors
    /// When QEMU is not installed.
    pub fn detect(kernel: Flavour, tell: &mut dyn FnMut(&str)) -> Result<Self, ToolError> {
        Ok(match Self::detect_usual(kernel, tell)? {
            Self::Tcg if kernel.sanitizer() == Some(Sanitizer::Races) => Self::TcgParallel,
            usual => usual,
        })
    }

    fn detect_usual(kernel: Flavour, tell: &mut dyn FnMut(&str)) -> Result<Self, ToolError> {
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
        tell("trying whether KVM works here (once)");
        let machine = Machine {
            accelerator: Self::Kvm,
            limit: SMOKE_LIMIT,
            ..Machine::new(kernel)
        };
        let task = Task::Command(vec!["true".to_owned()]);
        let outcome = machine.run(&task, &Payload::default(), false, tell);
        let works = outcome.is_ok_and(|outcome| outcome.status == Some(0));
        let found = if works { Self::Kvm } else { Self::Tcg };
        tell(if works {
            "KVM works and is used"
        } else {
            "KVM does not work; machines are emulated"
        });
        // Should the note not be written, the next time tries again.
        let _ = fs::write(&note, format!("{found}\n{circumstances}"));
        Ok(found)
    }
}

/// What was found before under the same circumstances.
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
