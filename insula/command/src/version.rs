//! `insula version`.

use std::fmt::Write;
use std::path::PathBuf;

use insula_abi::REVISION;
use insula_base::error::{Error, Kind};
use insula_base::root::Root;
use insula_driver::Driver;
use insula_image::companions;
use serde::Serialize;

use super::output::OUTPUT_VERSION;
use super::{Context, Failure, output};

/// The loaded module's version, and the running kernel's.
const MODULE: &str = "sys/module/insula/version";
const RELEASE: &str = "proc/sys/kernel/osrelease";

/// Versions of all parts.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Versions {
    /// Of this command.
    version: &'static str,
    /// Of what commands print as JSON.
    output: u32,
    /// Revision of the interface to the module that this command speaks.
    revision: u32,
    /// The loaded module.
    module: Option<Module>,
    /// The running kernel.
    kernel: Option<String>,
    /// Files that are installed with the command; without a path those that are not there.
    installed: Vec<Installed>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Module {
    version: Option<String>,
    /// Of the interface; none if it cannot be asked.
    revision: Option<u32>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Installed {
    name: &'static str,
    path: Option<PathBuf>,
}

pub(super) fn version(context: &Context, json: bool) -> Result<(), Failure> {
    let versions = Versions::read(&context.root);
    match json {
        true => output::json(&versions),
        false => output::print(&text(&versions)),
    }
}

impl Versions {
    fn read(root: &Root) -> Self {
        let installed = companions().map(|(name, path)| Installed {
            name,
            path: path.exists().then_some(path),
        });
        Self {
            version: env!("CARGO_PKG_VERSION"),
            output: OUTPUT_VERSION,
            revision: REVISION,
            module: module(root, Driver::open().map(drop)),
            kernel: read(root, RELEASE),
            installed: installed.into(),
        }
    }
}

/// The module, after an attempt to open it.
fn module(root: &Root, opened: Result<(), Error>) -> Option<Module> {
    let revision = match opened.map_err(|error| error.kind) {
        Ok(()) => Some(REVISION),
        Err(Kind::NoModule) => return None,
        Err(Kind::OtherRevision(revision)) => revision,
        Err(_) => None,
    };
    Some(Module {
        version: read(root, MODULE),
        revision,
    })
}

fn read(root: &Root, path: &str) -> Option<String> {
    let text = std::fs::read_to_string(root.path(path)).ok()?;
    Some(text.trim().to_owned())
}

fn text(versions: &Versions) -> String {
    let revision = |revision: Option<u32>| match revision {
        Some(number) => format!(" (interface revision {number})"),
        None => String::new(),
    };
    let of_module = versions.module.as_ref().map(|module| {
        let version = module.version.as_deref().unwrap_or("unknown");
        format!("{version}{}", revision(module.revision))
    });
    let own = format!("{}{}", versions.version, revision(Some(versions.revision)));
    let mut rows = vec![
        ("insula", own),
        ("module", of_module.unwrap_or_else(|| "not loaded".into())),
        ("kernel", versions.kernel.clone().unwrap_or_default()),
    ];
    let installed = versions.installed.iter().map(|one| {
        let path = one.path.as_ref().map(|path| path.display().to_string());
        (one.name, path.unwrap_or_else(|| "not installed".into()))
    });
    rows.extend(installed);
    rows.iter().fold(String::new(), |mut all, (name, value)| {
        // Writing to a string does not fail.
        let _ = writeln!(all, "{:<8} {value}", format!("{name}:"));
        all
    })
}

#[cfg(test)]
mod tests {
    use insula_driver::CallError;
    use nix::errno::Errno;

    use super::*;

    fn versions(opened: Result<(), Error>) -> Versions {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::at(folder.path());
        std::fs::create_dir_all(root.path("sys/module/insula")).unwrap();
        std::fs::write(root.path(MODULE), "0.0.9\n").unwrap();
        Versions {
            version: "0.1.0",
            output: OUTPUT_VERSION,
            revision: 4,
            module: module(&root, opened),
            kernel: Some("6.12.1-amd64".into()),
            installed: vec![
                Installed {
                    name: "lwk",
                    path: Some("/usr/lib/insula/lwk".into()),
                },
                Installed {
                    name: "vmm",
                    path: None,
                },
            ],
        }
    }

    #[test]
    fn all_parts_are_named() {
        let old = Error::of(Kind::OtherRevision(Some(3)), "an old module");
        insta::assert_snapshot!(text(&versions(Err(old))), @r"
        insula:  0.1.0 (interface revision 4)
        module:  0.0.9 (interface revision 3)
        kernel:  6.12.1-amd64
        lwk:     /usr/lib/insula/lwk
        vmm:     not installed
        ");
    }

    #[test]
    fn what_cannot_be_asked_is_told_nevertheless() {
        let missing = Error::of(Kind::NoModule, "none");
        assert!(versions(Err(missing)).module.is_none());
        let failed = CallError {
            call: "INSULA_HELLO",
            errno: Errno::EIO,
        };
        let failed = Error::new("it fails").because(failed);
        let module = versions(Err(failed)).module.unwrap();
        assert_eq!(module.version.as_deref(), Some("0.0.9"));
        assert_eq!(module.revision, None);
    }
}
