//! Packages of other suites of Debian than the computer's: of the backports, unpacked together with those that
//! they need and this computer lacks, and of newer Debians.
//!
//! apt gets lists, cache and sources of its own for this: the mirror is that among the computer's sources. The
//! computer's apt does not change.

use std::fs;
use std::io;
use std::path::Path;

use tempfile::TempDir;

use super::packages::{self, PackageError, apt_get};
use super::project;
use super::tool::Tool;

/// Debian's newest packages.
pub const UNSTABLE: &str = "sid";
/// Suite of Debian 12, which has the others' names as its own and an ending.
const SUITE: &str = "bookworm";
const BACKPORTS: &str = "bookworm-backports";
/// Keys of Debian's archive, which sign its mirrors, too.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// Fields of each list of packages that a source has, in apt's words.
const SOURCE_FORMAT: &str = "$(REPO_URI) $(CODENAME) $(COMPONENT)";

/// Downloads these packages of the backports and what they need beyond the installed packages, and
/// unpacks all into `target`.
///
/// # Errors
/// When the computer has no source of Debian 12, or apt or dpkg fails.
pub fn unpack_backports(names: &[&str], target: &Path) -> Result<(), PackageError> {
    let apt = Apt::new(sources(&sources_of_computer()?))?;
    // Some that are wanted may be installed.
    let resolve = ["--simulate", "--reinstall", "--no-install-recommends"];
    let resolve = apt.get().args(resolve).args(["install", "-t", BACKPORTS]);
    let plan = resolve.args(names).run()?;
    let packages: Vec<_> = parse_plan(&plan).collect();
    packages::unpack_with(apt.get(), &packages, target)
}

/// A newer suite, on the mirror of the computer's. What is installed on the computer is of no concern.
pub struct Suite(Apt);

impl Suite {
    /// Fetches the lists of its packages.
    ///
    /// # Errors
    /// When the computer has no source of Debian 12, or apt fails.
    pub fn open(name: &str) -> Result<Self, PackageError> {
        let computer = sources_of_computer()?;
        let sources = mirror(&computer).map(|mirror| source(mirror, name, "main"));
        let mut apt = Apt::new(sources)?;
        apt.knows_installed = false;
        Ok(Self(apt))
    }

    /// The packages that `package` depends on, direct ones only.
    ///
    /// # Errors
    /// When apt fails or does not know the package.
    pub fn dependencies(&self, package: &str) -> Result<Vec<String>, PackageError> {
        packages::dependencies_by(self.0.cache(), package)
    }

    /// Downloads these packages and all that they need, and unpacks them into `target`.
    ///
    /// # Errors
    /// When apt or dpkg fails.
    pub fn unpack_all(&self, names: &[&str], target: &Path) -> Result<(), PackageError> {
        let resolve = ["--simulate", "--no-install-recommends", "install"];
        let plan = self.0.get().args(resolve).args(names).run()?;
        let packages: Vec<_> = parse_plan(&plan).collect();
        packages::unpack_with(self.0.get(), &packages, target)
    }

    /// Downloads these packages, and nothing that they need, and unpacks them into `target`.
    ///
    /// # Errors
    /// When apt or dpkg fails.
    pub fn unpack_only(&self, names: &[&str], target: &Path) -> Result<(), PackageError> {
        let packages: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        packages::unpack_with(self.0.get(), &packages, target)
    }
}

/// Sources of Debian that the computer's apt uses, one in a line, as [`SOURCE_FORMAT`].
fn sources_of_computer() -> Result<String, PackageError> {
    let tool = Tool::new("apt-get").args(["indextargets", "--format", SOURCE_FORMAT]);
    Ok(tool
        .args(["Identifier: Packages", "Origin: Debian"])
        .run()?)
}

/// State of apt apart from the computer's, removed when dropped.
struct Apt {
    folder: TempDir,
    /// Whether it takes the computer's installed packages for installed.
    knows_installed: bool,
}

impl Apt {
    /// Fetches the lists of packages.
    fn new(sources: Option<String>) -> Result<Self, PackageError> {
        let sources = sources.ok_or_else(|| PackageError::Unknown {
            wanted: SUITE.to_owned(),
        })?;
        let build = project::build();
        let apt = Self {
            folder: tempfile::tempdir_in(&build).map_err(at(&build))?,
            knows_installed: true,
        };
        let path = apt.folder.path();
        for empty in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(path.join(empty)).map_err(at(path))?;
        }
        fs::write(path.join("sources.list"), sources).map_err(at(path))?;
        fs::write(path.join("none"), "").map_err(at(path))?;
        apt.get().arg("update").run()?;
        Ok(apt)
    }

    /// apt-get with this state, without its command.
    fn get(&self) -> Tool {
        apt_get().args(self.options())
    }

    /// apt-cache with this state, without its command.
    fn cache(&self) -> Tool {
        Tool::new("apt-cache").args(self.options())
    }

    fn options(&self) -> Vec<String> {
        let path = self.folder.path().display();
        let mut options = vec![
            format!("Dir::Etc::sourcelist={path}/sources.list"),
            "Dir::Etc::sourceparts=/dev/null".to_owned(),
            "Dir::Etc::preferences=/dev/null".to_owned(),
            "Dir::Etc::preferencesparts=/dev/null".to_owned(),
            format!("Dir::State::lists={path}/lists"),
            format!("Dir::Cache={path}/cache"),
            "Acquire::Languages=none".to_owned(),
            "APT::Update::Error-Mode=any".to_owned(),
        ];
        if !self.knows_installed {
            options.push(format!("Dir::State::status={path}/none"));
        }
        let options = options.into_iter();
        options
            .flat_map(|option| ["-o".to_owned(), option])
            .collect()
    }
}

/// Content of a list of sources: those of the computer, and the backports on the mirror of the suite
/// itself. None if the computer has no source of the suite.
fn sources(computer: &str) -> Option<String> {
    let wanted =
        own(computer).filter(|(_, suite, _)| suite.starts_with(SUITE) && *suite != BACKPORTS);
    let lines = wanted.chain([(mirror(computer)?, BACKPORTS, "main")]);
    Some(
        lines
            .map(|(uri, suite, component)| source(uri, suite, component))
            .collect(),
    )
}

/// The computer's sources: address, suite and component.
fn own(computer: &str) -> impl Iterator<Item = (&str, &str, &str)> {
    computer.lines().filter_map(|line| {
        let (uri, rest) = line.split_once(' ')?;
        let (suite, component) = rest.split_once(' ')?;
        Some((uri, suite, component))
    })
}

/// Address of the mirror of Debian 12.
fn mirror(computer: &str) -> Option<&str> {
    own(computer)
        .find(|source| source.1 == SUITE)
        .map(|source| source.0)
}

/// A line of a list of sources.
fn source(uri: &str, suite: &str, component: &str) -> String {
    format!("deb [signed-by={KEYRING}] {uri} {suite} {component}\n")
}

/// Packages that a simulated run of `apt-get install` installs, as `NAME=VERSION`.
fn parse_plan(text: &str) -> impl Iterator<Item = String> {
    text.lines().filter_map(|line| {
        let (name, rest) = line.strip_prefix("Inst ")?.split_once(' ')?;
        // Before the new version may be the installed one, in square brackets.
        let (_, version) = rest.split_once('(')?;
        let version = version.split_whitespace().next()?;
        Some(format!("{name}={version}"))
    })
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> PackageError + use<> {
    let path = path.to_owned();
    |source| PackageError::File { path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backports_come_from_the_mirror_of_the_suite() {
        let computer = "https://security.invalid/ bookworm-security main\n\
                        https://mirror.invalid/debian/ bookworm main\n\
                        https://mirror.invalid/debian/ bookworm contrib\n\
                        https://mirror.invalid/debian/ bookworm-backports main\n\
                        https://mirror.invalid/debian/ trixie main\n";
        let sources = sources(computer).unwrap();
        let lines: Vec<_> = sources.lines().collect();
        let start = format!("deb [signed-by={KEYRING}] https:");
        assert_eq!(lines.len(), 4, "{sources}");
        assert!(
            lines.iter().all(|line| line.starts_with(&start)),
            "{sources}"
        );
        assert!(lines[0].ends_with("//security.invalid/ bookworm-security main"));
        assert!(lines[3].ends_with("//mirror.invalid/debian/ bookworm-backports main"));
    }

    #[test]
    fn other_suites_have_no_backports_for_us() {
        assert_eq!(
            sources("https://mirror.invalid/debian/ trixie main\n"),
            None
        );
        assert_eq!(
            sources("https://mirror.invalid/ bookworm-security main\n"),
            None
        );
        assert_eq!(sources("\n"), None);
    }

    #[test]
    fn plan_has_names_and_new_versions() {
        let text = "Reading package lists...\nThe following packages will be upgraded:\n  emulator\n\
                    Inst emulator [1:7.2-7+b3] (1:10.0-2~bpo12+1 Debian Backports:x [amd64]) []\n\
                    Inst library:i386 (0.9-1 Debian:12.1/oldstable [i386])\n\
                    Conf emulator (1:10.0-2~bpo12+1 Debian Backports:x [amd64])\n";
        let packages: Vec<_> = parse_plan(text).collect();
        assert_eq!(
            packages,
            ["emulator=1:10.0-2~bpo12+1", "library:i386=0.9-1"]
        );
    }
}
