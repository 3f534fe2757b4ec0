//! Folders of the base in a node, beside its root.

use std::fmt;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use insula_agent::options;
use insula_base::error::Error;
use insula_base::serde_as_text;
use serde::{Deserialize, Serialize};

use super::SharedFolder;

/// Suffixes of a volume that is only read, and of one that is written, as the rest are.
const READ_ONLY: &str = ":ro";
const WRITABLE: &str = ":rw";
/// Most volumes of a node: each is a device, and has a process that serves it.
pub const VOLUMES_MAX: usize = 16;

/// A volume as given by the user: `FOLDER:MOUNT-POINT[:ro]`, as podman has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeSpec {
    /// The folder of the base.
    pub source: PathBuf,
    /// Where it is in the node, absolute.
    pub mount_point: PathBuf,
    /// Whether the node must not write to it.
    pub read_only: bool,
}

/// The text is no volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected FOLDER:MOUNT-POINT[:ro], for example /srv/data:/data:ro, with an absolute path below / as mount point"
)]
pub struct VolumeError;

impl FromStr for VolumeSpec {
    type Err = VolumeError;

    fn from_str(text: &str) -> Result<Self, VolumeError> {
        let read_only = text.strip_suffix(READ_ONLY);
        let paths = read_only.or_else(|| text.strip_suffix(WRITABLE));
        let (source, mount_point) = paths.unwrap_or(text).split_once(':').ok_or(VolumeError)?;
        if source.is_empty() || !is_mount_point(mount_point) {
            return Err(VolumeError);
        }
        Ok(Self {
            source: source.into(),
            mount_point: mount_point.into(),
            read_only: read_only.is_some(),
        })
    }
}

/// Whether it is a path below the root, without a way back.
fn is_mount_point(text: &str) -> bool {
    let mut parts = Path::new(text).components();
    let is_absolute = parts.next() == Some(Component::RootDir);
    let names: Vec<_> = parts.collect();
    let is_name = |part: &Component<'_>| matches!(part, Component::Normal(_));
    is_absolute && !names.is_empty() && names.iter().all(is_name) && !text.contains(':')
}

impl fmt::Display for VolumeSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = if self.read_only { READ_ONLY } else { "" };
        write!(
            f,
            "{}:{}{end}",
            self.source.display(),
            self.mount_point.display()
        )
    }
}

serde_as_text!(VolumeSpec, "^[^:]+:/[^:]+(:r[ow])?$");

/// A folder of the base that a node has at a mount point of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Volume {
    /// Its path on the base, absolute.
    pub folder: PathBuf,
    /// Its mount point in the node.
    pub mount_point: PathBuf,
    /// Whether the base refuses what the node writes.
    #[serde(default)]
    pub read_only: bool,
}

impl Volume {
    /// Checks the folder of `spec`.
    ///
    /// # Errors
    /// Why it cannot be shared; nothing was touched.
    pub fn find(spec: &VolumeSpec) -> Result<Self, Error> {
        let folder = SharedFolder::find_as(&spec.source, "volume", "a node's volume")?;
        Ok(Self {
            folder: folder.path().to_owned(),
            mount_point: spec.mount_point.clone(),
            read_only: spec.read_only,
        })
    }

    /// The agent's option for it.
    #[must_use]
    pub fn for_agent(&self) -> options::Volume {
        use std::os::unix::ffi::OsStrExt;
        options::Volume {
            mount_point: self.mount_point.as_os_str().as_bytes().to_owned(),
            read_only: self.read_only,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_that_of_podman() {
        for (text, source, mount_point, read_only) in [
            ("/srv:/data", "/srv", "/data", false),
            ("data:/var/lib/x:rw", "data", "/var/lib/x", false),
            ("/srv:/data:ro", "/srv", "/data", true),
        ] {
            let spec: VolumeSpec = text.parse().unwrap();
            assert_eq!(
                (
                    spec.source.to_str(),
                    spec.mount_point.to_str(),
                    spec.read_only
                ),
                (Some(source), Some(mount_point), read_only)
            );
            assert_eq!(spec.to_string().parse(), Ok(spec));
        }
    }

    #[test]
    fn mount_points_that_cannot_be_are_refused() {
        for text in [
            "/srv",
            ":/data",
            "/srv:",
            "/srv:data",
            "/srv:/",
            "/srv:/a/../b",
            "/srv:/a:/b",
            "/srv:/a:x",
        ] {
            assert_eq!(text.parse::<VolumeSpec>(), Err(VolumeError), "{text}");
        }
    }
}
