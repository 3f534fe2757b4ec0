//! The project's own Debian packages.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::payload::programs::{self, Programs, ProgramsError};
use super::project;
use super::tool::{Tool, ToolError};

/// The built packages.
#[derive(Clone, Debug)]
pub struct Debs {
    /// `insula`: the command, its manual, its service.
    pub command: PathBuf,
    /// `insula-dkms`: the module's sources.
    pub module: PathBuf,
    /// Identifies the sources that they were built from.
    pub sources: String,
}

/// Failure to build the packages.
#[derive(Debug, thiserror::Error)]
pub enum DebsError {
    /// The build failed.
    #[error(transparent)]
    Tool(#[from] ToolError),
    /// The programs could not be built.
    #[error(transparent)]
    Programs(#[from] ProgramsError),
    /// A file could not be read, or written.
    #[error("{path}: {source}")]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The underlying error.
        source: io::Error,
    },
}

/// Builds the packages, if the sources have changed, with the programs that all machines have. `progress` gets
/// a line before.
///
/// # Errors
/// When one cannot be built.
pub fn build(progress: &mut dyn FnMut(&str)) -> Result<Debs, DebsError> {
    progress("building the packages, if the sources have changed (a minute or two)");
    let folder = project::build().join("packages");
    let built = folder.join("built");
    gather(&programs::build_all(progress)?.0, &built)?;
    let script = project::root().join("scripts/deb");
    Tool::new(&script.to_string_lossy())
        .env("INSULA_BUILT", &built)
        .run()?;
    let stamp = folder.join("sources.sha256");
    Ok(Debs {
        command: newest(&folder, "insula_")?,
        module: newest(&folder, "insula-dkms_")?,
        sources: fs::read_to_string(&stamp).map_err(at(&stamp))?,
    })
}

/// Copies what is to be packaged to a folder, under the names that it has there.
fn gather(programs: &Programs, folder: &Path) -> Result<(), DebsError> {
    fs::create_dir_all(folder).map_err(at(folder))?;
    for (program, name) in [
        (&programs.insula, "insula"),
        (&programs.files, "insula-files"),
        (&programs.blocks, "insula-blocks"),
        (&programs.network, "insula-network"),
        (&programs.agent, "insula-agent"),
        (&programs.proxy, "insula-proxy"),
        (&programs.lwk, "lwk"),
        (&programs.vmm, "vmm"),
    ] {
        let copy = folder.join(name);
        fs::copy(program, &copy).map_err(at(&copy))?;
    }
    Ok(())
}

/// Path of the package whose file name starts with `prefix`. There is one of each.
fn newest(folder: &Path, prefix: &str) -> Result<PathBuf, DebsError> {
    let mut found = Err(io::ErrorKind::NotFound.into());
    for entry in fs::read_dir(folder).map_err(at(folder))? {
        let entry = entry.map_err(at(folder))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with(prefix) && name.ends_with(".deb") {
            found = Ok(entry.path());
        }
    }
    found.map_err(at(&folder.join(format!("{prefix}*.deb"))))
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> DebsError + use<> {
    let path = path.to_owned();
    |source| DebsError::File { path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(path: &str) -> String {
        fs::read_to_string(project::root().join(path)).unwrap()
    }

    /// Rest of the first line that starts with `prefix`, without the end of the line.
    fn after(text: &str, prefix: &str) -> String {
        let line = text.lines().find_map(|line| line.strip_prefix(prefix));
        line.unwrap()
            .split(['"', '-', ')'])
            .next()
            .unwrap()
            .to_owned()
    }

    #[test]
    fn versions_are_one() {
        let version = env!("CARGO_PKG_VERSION");
        assert_eq!(after(&text("kmod/main.c"), "MODULE_VERSION(\""), version);
        assert_eq!(
            after(&text("packaging/debian/changelog"), "insula ("),
            version
        );
    }

    #[test]
    fn packages_have_distinct_names() {
        let folder = tempfile::tempdir().unwrap();
        for name in [
            "insula_1_amd64.deb",
            "insula-dbgsym_1.deb",
            "insula_1.changes",
        ] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        let found = newest(folder.path(), "insula_").unwrap();
        assert!(found.ends_with("insula_1_amd64.deb"));
        assert!(newest(folder.path(), "insula-dkms_").is_err());
    }

    /// systemd-analyze accepts the service.
    #[test]
    fn service_is_well_formed() {
        let folder = tempfile::tempdir().unwrap();
        let unit = folder.path().join("insula.service");
        // The program need not be installed here.
        let content = text("packaging/insula.service").replace("/usr/bin/insula", "/bin/true");
        fs::write(&unit, content).unwrap();
        let verify = Tool::new("systemd-analyze").args(["verify", "--man=no"]);
        let output = verify.arg(&unit).run().unwrap();
        assert!(!output.contains("insula.service"), "{output}");
    }
}
