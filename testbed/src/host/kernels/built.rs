//! Kernels with a sanitizer, built from Debian's source.
//!
//! Their configuration is `testbed/src/host/kernels/*.config`: everything else is off, so that a build takes
//! some ten minutes on two cores.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{Flavour, Kernel, Sanitizer, beside, tree_of};
use crate::host::packages::{self, PackageError};
use crate::host::project;
use crate::host::tool::{Tool, ToolError};

/// Options of all of these kernels.
const BASE: &str = include_str!("base.config");
/// Options for KASAN.
const KASAN: &str = include_str!("kasan.config");
/// Options for KCSAN.
const KCSAN: &str = include_str!("kcsan.config");
/// Packages that a build needs beside a compiler; never installed, only unpacked.
const TOOLS: [&str; 6] = [
    "bison",
    "flex",
    "libelf-dev",
    "libelf1",
    "libsigsegv2",
    "m4",
];
/// Low priority: a build takes long.
const NICENESS: &str = "15";

/// Failure to build a kernel.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// Its source, or a tool for the build, could not be fetched.
    #[error(transparent)]
    Package(#[from] PackageError),
    /// A program failed.
    #[error(transparent)]
    Tool(#[from] ToolError),
    /// The configuration lacks wanted lines.
    #[error("kernel {flavour} lacks these lines of testbed/src/host/kernels: {lines}")]
    Configuration {
        /// The kernel.
        flavour: Flavour,
        /// The missing lines, separated by commas.
        lines: String,
    },
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The underlying error.
        source: io::Error,
    },
}

/// Folder of the build, against which modules for the kernel are built.
pub(super) fn objects_of(flavour: Flavour) -> PathBuf {
    beside(flavour, "objects")
}

/// Whether the last built kernel has the configuration wanted now. Always true for Debian's
/// kernels.
pub(super) fn is_current(flavour: Flavour) -> bool {
    let Some(sanitizer) = flavour.sanitizer() else {
        return true;
    };
    fs::read_to_string(wanted_of(flavour)).is_ok_and(|text| text == configuration(sanitizer))
}

/// Builds the kernel, if it is not current, from its source.
pub(super) fn build(
    flavour: Flavour,
    sanitizer: Sanitizer,
    progress: &mut dyn FnMut(&str),
) -> Result<Kernel, BuildError> {
    let build = Build::new(flavour, progress)?;
    build.configure(&configuration(sanitizer))?;
    progress(&format!(
        "building kernel {flavour} (some ten minutes on two free cores, once)"
    ));
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    build
        .make()
        .arg(format!("-j{jobs}"))
        .args(["bzImage", "modules"])
        .run()?;
    let kernel = build.install()?;
    let wanted = wanted_of(flavour);
    fs::write(&wanted, configuration(sanitizer)).map_err(at(&wanted))?;
    Ok(kernel)
}

/// Wanted options, one a line.
fn configuration(sanitizer: Sanitizer) -> String {
    let own = match sanitizer {
        Sanitizer::Memory => KASAN,
        Sanitizer::Races => KCSAN,
    };
    format!("{BASE}\n{own}")
}

/// File with the options that the kernel in the build folder was built with.
fn wanted_of(flavour: Flavour) -> PathBuf {
    beside(flavour, "wanted")
}

/// One kernel's source and tools.
struct Build {
    flavour: Flavour,
    source: PathBuf,
    tools: PathBuf,
}

impl Build {
    /// Fetches both, if they are missing.
    fn new(flavour: Flavour, progress: &mut dyn FnMut(&str)) -> Result<Self, BuildError> {
        let tools = project::build().join("kernel-tools");
        if !tools.join("usr/bin/flex").exists() {
            packages::unpack(&TOOLS.map(str::to_owned), &tools)?;
        }
        let package = flavour.package();
        let folder = project::build().join(package);
        let source = folder.join(package);
        if !source.join("Makefile").exists() {
            progress(&format!("fetching and unpacking {package}"));
            packages::unpack(&[package.to_owned()], &folder)?;
            let archive = folder.join(format!("usr/src/{package}.tar.xz"));
            let partial = folder.join("partial");
            remove_folder(&partial)?;
            fs::create_dir(&partial).map_err(at(&partial))?;
            let tar = Tool::new("tar").arg("-C").arg(&partial).arg("-xf");
            tar.arg(&archive).run()?;
            fs::rename(partial.join(package), &source).map_err(at(&source))?;
            // The unpacked source is ten times as large, and enough.
            fs::remove_file(&archive).map_err(at(&archive))?;
        }
        Ok(Self {
            flavour,
            source,
            tools,
        })
    }

    /// The kernel's `make`, without a target.
    fn make(&self) -> Tool {
        let tools = self.tools.join("usr");
        let libraries = tools.join("lib/x86_64-linux-gnu");
        let path = std::env::join_paths(
            std::iter::once(tools.join("bin"))
                .chain(std::env::split_paths(&crate::host::tool::search_path())),
        );
        let mut objects = std::ffi::OsString::from("O=");
        objects.push(objects_of(self.flavour));
        let tool = Tool::new("nice")
            .args(["-n", NICENESS, "make", "-C"])
            .arg(&self.source)
            .arg(objects)
            .arg(format!("HOSTCFLAGS=-I{}", tools.join("include").display()))
            .arg(format!("HOSTLDFLAGS=-L{}", libraries.display()))
            // Flags of an outer make do not apply here.
            .env("MAKEFLAGS", "")
            .env("BISON_PKGDATADIR", tools.join("share/bison"))
            .env("LD_LIBRARY_PATH", libraries)
            .env("KBUILD_BUILD_USER", "testbed")
            .env("KBUILD_BUILD_HOST", "testbed");
        // `join_paths` fails only for a folder with a colon in its name; the tools are not found
        // then.
        match path {
            Ok(path) => tool.env("PATH", path),
            Err(_) => tool,
        }
    }

    /// Writes the kernel's configuration, and checks that it has every line.
    fn configure(&self, wanted: &str) -> Result<(), BuildError> {
        let objects = objects_of(self.flavour);
        fs::create_dir_all(&objects).map_err(at(&objects))?;
        let lines = objects.join("wanted");
        fs::write(&lines, wanted).map_err(at(&lines))?;
        self.make()
            .env("KCONFIG_ALLCONFIG", &lines)
            .arg("allnoconfig")
            .run()?;
        let path = objects.join(".config");
        let found = fs::read_to_string(&path).map_err(at(&path))?;
        let lines = missing_lines(wanted, &found).join(", ");
        if lines.is_empty() {
            return Ok(());
        }
        let flavour = self.flavour;
        Err(BuildError::Configuration { flavour, lines })
    }

    /// Puts the kernel and its modules where Debian's packages have theirs.
    fn install(&self) -> Result<Kernel, BuildError> {
        let (objects, tree) = (objects_of(self.flavour), tree_of(self.flavour));
        let path = objects.join("include/config/kernel.release");
        let release = fs::read_to_string(&path).map_err(at(&path))?;
        let release = release.trim().to_owned();
        remove_folder(&tree)?;
        let boot = tree.join("boot");
        fs::create_dir_all(&boot).map_err(at(&boot))?;
        for (from, to) in [
            ("arch/x86/boot/bzImage", "vmlinuz"),
            ("System.map", "System.map"),
            (".config", "config"),
        ] {
            let to = boot.join(format!("{to}-{release}"));
            fs::copy(objects.join(from), &to).map_err(at(&to))?;
        }
        let mut modules = std::ffi::OsString::from("INSTALL_MOD_PATH=");
        modules.push(&tree);
        self.make().arg(modules).arg("modules_install").run()?;
        // Links back to the build folder, which does not exist inside.
        for name in ["build", "source"] {
            let link = tree.join("lib/modules").join(&release).join(name);
            if link.is_symlink() {
                fs::remove_file(&link).map_err(at(&link))?;
            }
        }
        Ok(Kernel {
            flavour: self.flavour,
            release,
        })
    }
}

/// Lines of `wanted` that the configuration `found` lacks.
fn missing_lines<'a>(wanted: &'a str, found: &str) -> Vec<&'a str> {
    let has = |line: &&str| {
        if let Some(option) = line.strip_suffix("=n") {
            return !found
                .lines()
                .any(|line| line.starts_with(&format!("{option}=")));
        }
        found.lines().any(|found| found == *line)
    };
    let options = wanted.lines().filter(|line| line.starts_with("CONFIG_"));
    options.filter(|line| !has(line)).collect()
}

fn remove_folder(path: &Path) -> Result<(), BuildError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(at(path)(error)),
        _ => Ok(()),
    }
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> BuildError + use<> {
    let path = path.to_owned();
    |source| BuildError::File { path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_a_configuration_lacks_are_listed() {
        let wanted =
            "# a comment\nCONFIG_A=y\nCONFIG_B=m\nCONFIG_C=n\nCONFIG_D=n\nCONFIG_E=\"x\"\n";
        let found = "CONFIG_A=y\nCONFIG_B=y\n# CONFIG_C is not set\nCONFIG_D=y\nCONFIG_E=\"x\"\n";
        assert_eq!(missing_lines(wanted, found), ["CONFIG_B=m", "CONFIG_D=n"]);
    }

    /// Options of both kinds of kernel: each test alone would not notice an option of the other.
    #[test]
    fn each_sanitizer_has_its_options_and_lockdep() {
        for (sanitizer, option) in [
            (Sanitizer::Memory, "CONFIG_KASAN=y"),
            (Sanitizer::Races, "CONFIG_KCSAN=y"),
        ] {
            let text = configuration(sanitizer);
            for line in [
                option,
                "CONFIG_PROVE_LOCKING=y",
                "CONFIG_DEBUG_ATOMIC_SLEEP=y",
            ] {
                assert!(text.lines().any(|found| found == line), "{line}");
            }
            let version = format!("CONFIG_LOCALVERSION=\"-{}\"", sanitizer.suffix());
            assert!(text.contains(&version));
        }
    }
}
