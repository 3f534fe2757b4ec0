//! An image's description, stored beside its bytes.

use std::path::PathBuf;

use clap::ValueEnum;
use kimage::Loadable;
use kimage::log::LogLayout;
use serde::{Deserialize, Serialize};

/// Alignment of the parts in an image's memory, in bytes: a page.
const PART_ALIGNMENT: u64 = 4096;

/// Form of the kernel that a node is given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Payload {
    /// The file as it is; the node decompresses it.
    #[default]
    Compressed,
    /// Decompressed: more to copy, nothing to decompress, no KASLR.
    Decompressed,
}

/// A file that an image was made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct FileRecord {
    /// Its path.
    pub path: PathBuf,
    /// Its size in bytes.
    pub size: u64,
    /// SHA-256 of its content, in hexadecimal.
    pub sha256: String,
}

/// How a node's kernel log can be read.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogSource {
    /// With this layout of the kernel's symbols and structures.
    Layout(Box<LogLayout>),
    /// With a layout still to be read from the kernel's file: for nodes started from files, where
    /// reading it first would delay the start.
    File {
        /// The kernel's file.
        path: PathBuf,
        /// Its size when the node was started, in bytes.
        size: u64,
        /// Its time of modification then, in nanoseconds since 1970.
        modified_ns: u64,
    },
    /// Not readable, with the reason.
    Unreadable(String),
}

impl LogSource {
    /// Reads the layout of the log from a kernel's file, packed or not.
    ///
    /// # Errors
    /// The reason, as text for the user.
    pub fn read_layout(kernel: &[u8]) -> Result<LogLayout, String> {
        let elf = kimage::vmlinux(kernel).map_err(|error| error.to_string())?;
        LogLayout::from_vmlinux(&elf).map_err(|error| error.to_string())
    }
}

/// Offsets of the parts in an image's memory object, in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct ResidentLayout {
    /// The kernel's segments, in the order of [`Loadable::segments`].
    pub segments: Vec<u64>,
    /// The initrd.
    pub initrd: u64,
    /// All of it.
    pub size: u64,
}

impl ResidentLayout {
    /// Places segments and initrd one after the other, each on a page boundary.
    #[must_use]
    pub fn plan(loadable: &Loadable, initrd_size: u64) -> Self {
        let mut end = 0_u64;
        let mut place = |size: u64| {
            let start = end;
            end = start
                .saturating_add(size)
                .checked_next_multiple_of(PART_ALIGNMENT)
                .unwrap_or(!0);
            start
        };
        let segments = loadable
            .segments
            .iter()
            .map(|segment| place(segment.size))
            .collect();
        let initrd = place(initrd_size);
        Self {
            segments,
            initrd,
            size: end,
        }
    }
}

/// Whether a part is within `whole` bytes.
fn within(start: u64, size: u64, whole: u64) -> bool {
    start.checked_add(size).is_some_and(|end| end <= whole)
}

/// Everything that a start from a resident image needs to know, and the image's origin.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Description {
    /// What a loader needs to know of the kernel.
    pub loadable: Loadable,
    /// Form of the kernel that is resident.
    pub payload: Payload,
    /// Bytes of the initrd, 0 for none.
    pub initrd_size: u64,
    /// Offsets of the parts.
    pub layout: ResidentLayout,
    /// Kernel command line of every node of this image.
    pub append: String,
    /// How the logs of its nodes are read.
    pub log: LogSource,
    /// When it was added, in seconds since 1970.
    pub added_unix_s: u64,
    /// File of the kernel.
    pub kernel: FileRecord,
    /// File of the initrd.
    pub initrd: Option<FileRecord>,
    /// The project that added it (`insula up`), if one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
}

impl Description {
    /// Whether its parts are within its memory, and all that it says can be.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let ResidentLayout {
            segments,
            initrd,
            size,
        } = &self.layout;
        let resident = |start: u64, bytes| within(start, bytes, *size);
        let mut parts = self.loadable.segments.iter().zip(segments);
        self.loadable.is_valid()
            && !matches!(self.log, LogSource::File { .. })
            && size.is_multiple_of(PART_ALIGNMENT)
            && segments.len() == self.loadable.segments.len()
            && resident(*initrd, self.initrd_size)
            && parts.all(|(segment, &start)| resident(start, segment.size))
    }

    /// The image's content.
    #[must_use]
    pub fn content(&self) -> Content {
        Content {
            kernel_sha256: self.kernel.sha256.clone(),
            initrd_sha256: self.initrd.as_ref().map(|file| file.sha256.clone()),
            payload: self.payload,
            append: self.append.clone(),
        }
    }
}

/// What identifies an image's content: images with equal content start equal nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Content {
    /// SHA-256 of the kernel's file, in hexadecimal.
    pub kernel_sha256: String,
    /// SHA-256 of the initrd's file.
    pub initrd_sha256: Option<String>,
    /// Form of the kernel that is resident.
    pub payload: Payload,
    /// Kernel command line of every node of this image.
    pub append: String,
}

#[cfg(test)]
pub(crate) mod tests {
    use kimage::{Format, Segment};
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn loadable(sizes: &[u64]) -> Loadable {
        let mut end = 0;
        let mut segment = |&size: &u64| {
            let load_offset = end;
            end += size;
            Segment {
                file_offset: 0,
                load_offset,
                size,
            }
        };
        Loadable {
            format: Format::BzImage,
            release: "6.1.0-test".into(),
            setup_header: vec![1, 2],
            entry_offset: 0x200,
            alignment: 2 << 20,
            footprint: sizes.iter().sum(),
            segments: sizes.iter().map(&mut segment).collect(),
        }
    }

    pub(crate) fn description(sizes: &[u64], initrd_size: u64) -> Description {
        let loadable = loadable(sizes);
        let record = || FileRecord {
            path: "/k".into(),
            size: 1,
            sha256: String::new(),
        };
        Description {
            payload: Payload::Compressed,
            initrd_size,
            layout: ResidentLayout::plan(&loadable, initrd_size),
            append: String::new(),
            log: LogSource::Unreadable("none".into()),
            added_unix_s: 0,
            kernel: record(),
            initrd: Some(record()),
            project: None,
            loadable,
        }
    }

    #[test]
    fn descriptions_that_lead_outside_are_not_valid() {
        let changed = |change: fn(&mut Description)| {
            let mut description = description(&[5000, 3], 100);
            change(&mut description);
            description.is_valid()
        };
        assert!(changed(|_| ()));
        assert!(!changed(|one| one.initrd_size = 4097));
        assert!(!changed(|one| one.layout.initrd = u64::MAX));
        assert!(!changed(|one| one.layout.segments[1] += 4094 + 4096));
        assert!(!changed(|one| one.layout.segments.truncate(1)));
        assert!(!changed(|one| one.layout.size += 1));
        assert!(!changed(|one| one.loadable.segments[0].load_offset = 4));
        assert!(!changed(|one| one.log = LogSource::File {
            path: "/etc/shadow".into(),
            size: 0,
            modified_ns: 0,
        }));
    }

    proptest! {
        #[test]
        fn parts_do_not_overlap(
            sizes in proptest::collection::vec(0_u64..100_000, 1..6),
            initrd in 0_u64..1_000_000,
        ) {
            let layout = ResidentLayout::plan(&loadable(&sizes), initrd);
            let starts = layout.segments.iter().copied().chain([layout.initrd]);
            let mut end = 0;
            for (start, size) in starts.zip(sizes.iter().copied().chain([initrd])) {
                prop_assert!(start >= end && start % PART_ALIGNMENT == 0);
                end = start + size;
            }
            prop_assert!(layout.size >= end && layout.size < end + PART_ALIGNMENT);
        }
    }
}
