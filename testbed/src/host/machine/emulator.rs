//! Emulators of machines: QEMU, the installed one or that of Debian's backports in the build folder; or
//! Bochs.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::host::packages::PackageError;
use crate::host::project;
use crate::host::suites;
use crate::host::tool::Tool;

/// Environment variable with the path of the QEMU that runs all machines, whatever they name.
const QEMU_VARIABLE: &str = "INSULA_QEMU";
/// Name of QEMU's program.
const QEMU: &str = "qemu-system-x86_64";
/// Packages of the backports: the program, its loadable parts, its firmware.
const PACKAGES: [&str; 4] = [
    "qemu-system-x86",
    "qemu-system-common",
    "qemu-system-data",
    "seabios",
];
/// Folders that packages have shared libraries in.
const LIBRARIES: [&str; 2] = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"];
/// Folder of its loadable parts.
const MODULES: &str = "usr/lib/x86_64-linux-gnu/qemu";
/// Folders of firmware.
const FIRMWARE: [&str; 2] = ["usr/share/qemu", "usr/share/seabios"];

/// What runs a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Emulator {
    /// The installed QEMU: 7.2 on Debian 12.
    #[default]
    Installed,
    /// That of Debian's backports, 10.0: by TCG it emulates x2APIC mode of local APICs, which QEMU
    /// before 9.0 does not.
    Backports,
    /// Bochs: processors of Intel with VMX. Slow, and without disks and devices: see `bochs`.
    Bochs,
}

/// A QEMU that can be started.
#[derive(Clone, Debug)]
pub struct Qemu {
    program: OsString,
    /// Into which its packages were unpacked, unless it is installed: Debian's QEMU does not look for
    /// its other files beside itself.
    folder: Option<PathBuf>,
}

/// The text names no emulator.
#[derive(Debug, thiserror::Error)]
#[error("there is no emulator `{0}`; there are installed, backports and bochs")]
pub struct UnknownEmulator(String);

/// Path of the installed QEMU: from `INSULA_QEMU`, else its name, for PATH.
#[must_use]
pub fn qemu() -> OsString {
    chosen().unwrap_or_else(|| QEMU.into())
}

/// QEMU that the user has chosen.
fn chosen() -> Option<OsString> {
    std::env::var_os(QEMU_VARIABLE)
}

impl Emulator {
    const ALL: [Self; 3] = [Self::Installed, Self::Backports, Self::Bochs];

    /// QEMU, fetched if it is not there yet and not installed by others. `progress` gets a line
    /// before.
    ///
    /// # Errors
    /// When packages cannot be fetched, or what they contain does not start.
    pub fn fetch(self, progress: &mut dyn FnMut(&str)) -> Result<Qemu, PackageError> {
        if self == Self::Backports && chosen().is_none() {
            return from_backports(progress);
        }
        Ok(Qemu {
            program: qemu(),
            folder: None,
        })
    }

    /// The emulator's version, as it tells it, or Bochs' package; see [`fetch`](Self::fetch).
    ///
    /// # Errors
    /// As of [`fetch`](Self::fetch).
    pub fn version(self, progress: &mut dyn FnMut(&str)) -> Result<String, PackageError> {
        if self == Self::Bochs {
            let query =
                Tool::new("dpkg-query").args(["--show", "--showformat", "Bochs ${Version}"]);
            return Ok(query.arg("bochs").run()?);
        }
        let told = self.fetch(progress)?.version()?;
        Ok(told.lines().next().unwrap_or_default().to_owned())
    }

    fn name(self) -> &'static str {
        match self {
            Self::Installed => "installed",
            Self::Backports => "backports",
            Self::Bochs => "bochs",
        }
    }
}

/// QEMU of the backports, in a folder that is either complete or absent.
fn from_backports(progress: &mut dyn FnMut(&str)) -> Result<Qemu, PackageError> {
    let build = project::build();
    let folder = build.join("qemu-backports");
    if !folder.exists() {
        progress("fetching QEMU 10 of Debian's backports (some 30 MB)");
        let work = tempfile::tempdir_in(&build).map_err(at(&build))?;
        let partial = work.path().join("qemu");
        suites::unpack_backports(&PACKAGES, &partial)?;
        // It starts.
        Qemu::in_folder(&partial).version()?;
        fs::rename(&partial, &folder).map_err(at(&folder))?;
    }
    Ok(Qemu::in_folder(&folder))
}

impl Qemu {
    /// The one in a folder into which its packages have been unpacked.
    fn in_folder(folder: &Path) -> Self {
        Self {
            program: folder.join("usr/bin").join(QEMU).into(),
            folder: Some(folder.to_owned()),
        }
    }

    /// Path of the program, or its name, for PATH.
    pub(super) fn program(&self) -> &OsStr {
        &self.program
    }

    /// Arguments with which it finds its firmware.
    pub(super) fn arguments(&self) -> Vec<OsString> {
        let folders = self.folder.iter();
        let firmware = folders.flat_map(|folder| FIRMWARE.map(|path| folder.join(path)));
        firmware
            .flat_map(|path| ["-L".into(), path.into_os_string()])
            .collect()
    }

    /// Environment variables with which it finds its libraries and its loadable parts.
    pub(super) fn environment(&self) -> Vec<(&'static str, OsString)> {
        let Some(folder) = &self.folder else {
            return Vec::new();
        };
        let libraries = LIBRARIES.map(|path| folder.join(path).into_os_string());
        vec![
            ("LD_LIBRARY_PATH", libraries.join(OsStr::new(":"))),
            ("QEMU_MODULE_DIR", folder.join(MODULES).into()),
        ]
    }

    fn version(&self) -> Result<String, PackageError> {
        let mut tool = Tool::new(&self.program.to_string_lossy()).arg("--version");
        for (name, value) in self.environment() {
            tool = tool.env(name, value);
        }
        Ok(tool.run()?)
    }
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> PackageError + use<> {
    let path = path.to_owned();
    |source| PackageError::File { path, source }
}

impl fmt::Display for Emulator {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FromStr for Emulator {
    type Err = UnknownEmulator;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|one| one.name() == text);
        found.ok_or_else(|| UnknownEmulator(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back() {
        for emulator in Emulator::ALL {
            assert_eq!(emulator.to_string().parse::<Emulator>().unwrap(), emulator);
        }
        assert!("qemu".parse::<Emulator>().is_err());
    }

    #[test]
    fn unpacked_program_finds_what_is_beside_it() {
        let qemu = Qemu::in_folder(Path::new("/somewhere"));
        assert_eq!(qemu.program(), "/somewhere/usr/bin/qemu-system-x86_64");
        let firmware = [
            "-L",
            "/somewhere/usr/share/qemu",
            "-L",
            "/somewhere/usr/share/seabios",
        ];
        assert_eq!(qemu.arguments(), firmware);
        let libraries = "/somewhere/usr/lib/x86_64-linux-gnu:/somewhere/lib/x86_64-linux-gnu";
        let modules = "/somewhere/usr/lib/x86_64-linux-gnu/qemu";
        let expected = [
            ("LD_LIBRARY_PATH", libraries.into()),
            ("QEMU_MODULE_DIR", modules.into()),
        ];
        assert_eq!(qemu.environment(), expected);
    }
}
