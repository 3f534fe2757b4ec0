//! What is kept beside an image's bytes.

use std::path::PathBuf;

use kimage::Loadable;
use kimage::log::LogLayout;
use serde::{Deserialize, Serialize};

/// Alignment of the pieces in an image's memory, in bytes: a page.
const PIECE_ALIGNMENT: u64 = 4096;

/// Which form of the kernel a node is given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Payload {
    /// The file as it is. A bzImage is small to copy; the node unpacks itself.
    #[default]
    Compressed,
    /// The ELF file inside. More to copy, nothing to unpack, no KASLR (that is the unpacker's
    /// work).
    Decompressed,
}

/// A file that went into an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRecord {
    /// Where it was.
    pub path: PathBuf,
    /// Its bytes.
    pub size: u64,
    /// SHA-256 of its content, in hexadecimal.
    pub sha256: String,
}

/// How a node's kernel log can be read.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogSource {
    /// By this knowledge of the kernel's symbols and structures.
    Layout(Box<LogLayout>),
    /// By the same knowledge, still to be had from the kernel's file: for nodes started from files,
    /// where gaining it would delay the start.
    File {
        /// The kernel's file.
        path: PathBuf,
        /// Its size when the node was started, in bytes.
        size: u64,
        /// Its time of modification then, in nanoseconds since 1970.
        modified_ns: u64,
    },
    /// Not at all, and why.
    Unreadable(String),
}

impl LogSource {
    /// What a kernel's file, packed or not, tells of its log.
    ///
    /// # Errors
    /// Why it tells nothing, as words for the user.
    pub fn learn(kernel: &[u8]) -> Result<LogLayout, String> {
        let elf = kimage::vmlinux(kernel).map_err(|error| error.to_string())?;
        LogLayout::from_vmlinux(&elf).map_err(|error| error.to_string())
    }
}

/// Where the pieces lie in an image's memory object, in bytes from its beginning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResidentLayout {
    /// The kernel's segments, in the order of [`Loadable::segments`].
    pub segments: Vec<u64>,
    /// The initrd.
    pub initrd: u64,
    /// All of it.
    pub size: u64,
}

impl ResidentLayout {
    /// Places segments and initrd one after the other, each on a page of its own.
    #[must_use]
    pub fn plan(loadable: &Loadable, initrd_size: u64) -> Self {
        let mut end = 0_u64;
        let mut place = |size: u64| {
            let start = end;
            end = start
                .saturating_add(size)
                .checked_next_multiple_of(PIECE_ALIGNMENT)
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

/// Everything that a start from a resident image needs to know, and where it came from.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Description {
    /// What a loader must know of the kernel.
    pub loadable: Loadable,
    /// Which form of it is resident.
    pub payload: Payload,
    /// Bytes of the initrd, 0 for none.
    pub initrd_size: u64,
    /// Where the pieces lie.
    pub layout: ResidentLayout,
    /// Kernel command line of every node of this image.
    pub append: String,
    /// How the log of its nodes is read.
    pub log: LogSource,
    /// When it was added, in seconds since 1970.
    pub added_unix_s: u64,
    /// The kernel's file.
    pub kernel: FileRecord,
    /// The initrd's file.
    pub initrd: Option<FileRecord>,
    /// The project that it was added for (`insula up`), if it was for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
}

impl Description {
    /// What it is made of.
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

/// What an image is made of: those of equal content start equal nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Content {
    /// SHA-256 of the kernel's file, in hexadecimal.
    pub kernel_sha256: String,
    /// The same of the initrd's.
    pub initrd_sha256: Option<String>,
    /// Which form of the kernel is resident.
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
        let segment = |&size: &u64| Segment {
            file_offset: 0,
            load_offset: 0,
            size,
        };
        Loadable {
            format: Format::BzImage,
            release: "6.1.0-test".into(),
            setup_header: vec![1, 2],
            entry_offset: 0x200,
            alignment: 2 << 20,
            footprint: sizes.iter().sum(),
            segments: sizes.iter().map(segment).collect(),
        }
    }

    proptest! {
        #[test]
        fn pieces_do_not_overlap(
            sizes in proptest::collection::vec(0_u64..100_000, 1..6),
            initrd in 0_u64..1_000_000,
        ) {
            let layout = ResidentLayout::plan(&loadable(&sizes), initrd);
            let starts = layout.segments.iter().copied().chain([layout.initrd]);
            let mut end = 0;
            for (start, size) in starts.zip(sizes.iter().copied().chain([initrd])) {
                prop_assert!(start >= end && start % PIECE_ALIGNMENT == 0);
                end = start + size;
            }
            prop_assert!(layout.size >= end && layout.size < end + PIECE_ALIGNMENT);
        }
    }
}
