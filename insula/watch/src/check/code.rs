//! Code and constants against the image.

use super::kprobes::kprobes;
use super::trampolines::Trampolines;
use super::{Check, Round};
use crate::finding::{Finding, Kind};
use crate::repair::Repair;
use crate::target::{Kernel, Target};
use kimage::reference::{Change, Code, ReferenceError};
use kimage::running::RunningError;

/// Bytes of a change that are shown.
const SHOWN_MAX: usize = 16;

/// Compares with the image, patches of the boot with what they were at the first look.
#[derive(Debug, Default)]
pub(super) struct CodeCheck {
    /// Why there is nothing to compare with.
    unusable: Option<String>,
    learned: Option<Learned>,
}

#[derive(Debug)]
struct Learned {
    code: Code,
    constants: Vec<Code>,
}

impl Check for CodeCheck {
    fn name(&self) -> &'static str {
        "code"
    }

    fn look(&mut self, round: &Round<'_>) -> Result<Vec<Finding>, RunningError> {
        if let Some(reason) = &self.unusable {
            return Ok(vec![Finding::new(Kind::Unreadable, "code", reason)]);
        }
        let Some(learned) = self.learned(round.target)? else {
            return Ok(Vec::new());
        };
        learned.look(round)
    }
}

impl CodeCheck {
    fn learned(&mut self, target: &Target<'_>) -> Result<Option<&Learned>, RunningError> {
        let Some(reference) = target.reference else {
            return Ok(None);
        };
        if self.learned.is_none() {
            let code = reference.code(target.kernel);
            let learned = code.and_then(|code| {
                let constants = reference.constants(target.kernel)?;
                Ok(Learned { code, constants })
            });
            match learned {
                Ok(learned) => self.learned = Some(learned),
                Err(ReferenceError::Running(error)) => return Err(error),
                Err(error) => self.unusable = Some(error.to_string()),
            }
        }
        Ok(self.learned.as_ref())
    }
}

impl Learned {
    fn look(&self, round: &Round<'_>) -> Result<Vec<Finding>, RunningError> {
        let kernel = round.target.kernel;
        let compared = Compared {
            code: &self.code,
            constants: &self.constants,
            place: &|address| {
                let is_code = self.code.range().contains(&address);
                let name = match is_code {
                    true => kernel.describe_code(address),
                    false => kernel.describe_data(address),
                };
                name.unwrap_or_else(|| format!("{address:#x}"))
            },
        };
        let mut found = Vec::new();
        compare(kernel, &compared, &mut found)?;
        Ok(found)
    }
}

/// Code and constants as they must stay, of the kernel or of a module.
pub(super) struct Compared<'a> {
    pub(super) code: &'a Code,
    pub(super) constants: &'a [Code],
    /// Names an address in them.
    pub(super) place: &'a dyn Fn(u64) -> String,
}

/// Adds what differs.
pub(super) fn compare(
    kernel: &Kernel<'_>,
    compared: &Compared<'_>,
    found: &mut Vec<Finding>,
) -> Result<(), RunningError> {
    let place = compared.place;
    let differences = compared.code.differences(kernel, &kprobes(kernel)?)?;
    for change in &differences.changes {
        found.push(finding(Kind::CodeChanged, place(change.address), change));
    }
    if !differences.transfers.is_empty() {
        let trampolines = Trampolines::of(kernel)?;
        for call in differences.transfers {
            if !trampolines.permit(kernel, &call) {
                let to = kernel.describe_code(call.target);
                let to = to.unwrap_or_else(|| format!("{:#x}", call.target));
                let detail = format!("it leads to {to}, where no such call does");
                let subject = place(call.address);
                found.push(Finding::new(Kind::CallRedirected, subject, detail));
            }
        }
    }
    for part in compared.constants {
        for change in part.differences(kernel, &[])?.changes {
            let subject = place(change.address);
            found.push(finding(Kind::ConstantsChanged, subject, &change));
        }
    }
    Ok(())
}

fn finding(kind: Kind, subject: String, change: &Change) -> Finding {
    let shown = |bytes: &[u8]| {
        let digits = bytes
            .iter()
            .take(SHOWN_MAX)
            .map(|byte| format!("{byte:02x}"));
        digits.collect::<Vec<_>>().join(" ")
    };
    let (found, expected) = (shown(&change.found), shown(&change.expected));
    let detail = format!(
        "{} bytes from {:#x} are {found}, must be {expected}",
        change.found.len(),
        change.address
    );
    let repair = Repair::of_bytes(change.address, &change.found, &change.expected);
    Finding::new(kind, subject, detail).with_repair(Some(match kind {
        Kind::CodeChanged => repair.of_code(),
        _ => repair,
    }))
}
