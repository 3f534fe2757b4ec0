//! What a node boots from, a resident image or files, and loading it into the node's memory.

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use insula_base::error::{Error, Kind};
use insula_driver::name::Name;
use insula_driver::{Driver, DriverError, Extent, Mapping, Memory, OutOfRange};
use kimage::{Loadable, Segment};

use super::ResidentLayout;
use super::files::open_initrd;
use super::{Description, FileRecord, Files, Image, KernelFile, LogSource, Payload, built_in};

/// Why a kernel or initrd could not be loaded into a node's memory.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The memory could not be accessed.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// An address is outside of the node's memory.
    #[error(transparent)]
    Range(#[from] OutOfRange),
    /// The initrd could not be read.
    #[error("reading the initrd: {0}")]
    Initrd(#[from] io::Error),
}

/// A kernel and initrd, ready to be loaded into a node's memory.
#[derive(Debug)]
pub struct Bootable {
    /// The image, if it is one.
    pub image: Option<Name>,
    /// What a loader needs to know of the kernel.
    pub loadable: Loadable,
    /// Which form of the kernel this is.
    pub payload: Payload,
    /// Bytes of the initrd, 0 for none.
    pub initrd_size: u64,
    /// The image's part of the command line.
    pub append: String,
    /// How the kernel's log is read.
    pub log: LogSource,
    /// Path of the kernel.
    pub kernel: PathBuf,
    /// Path of the initrd.
    pub initrd: Option<PathBuf>,
    /// Time that reading (and unpacking) the kernel's file took; zero for a resident image.
    pub read_time: Duration,
    bytes: Bytes,
}

#[derive(Debug)]
enum Bytes {
    Resident {
        memory: Memory,
        layout: ResidentLayout,
    },
    Files {
        kernel: Vec<u8>,
        initrd: Option<File>,
    },
}

impl Bootable {
    /// The image of that name: a resident one, or else the built-in one.
    ///
    /// # Errors
    /// [`Kind::NoImage`], also if the built-in one is unusable; or the module's.
    pub fn of_image(driver: &Driver, name: &Name) -> Result<Self, Error> {
        match super::open(driver, name) {
            Err(error) if error.kind == Kind::NoImage && name.as_str() == built_in::NAME => {
                Self::built_in(name)
            }
            image => image.map(Self::resident),
        }
    }

    /// The monitor of confined nodes.
    ///
    /// # Errors
    /// [`Kind::Kernel`] if it is not installed, or damaged.
    pub fn monitor() -> Result<Self, Error> {
        let files = Files {
            kernel: built_in::monitor(),
            initrd: None,
        };
        Self::files(&files, Payload::Compressed)
            .map_err(|error| error.context("the monitor of confined nodes"))
    }

    fn built_in(name: &Name) -> Result<Self, Error> {
        let files = Files {
            kernel: built_in::path(),
            initrd: None,
        };
        let bootable = Self::files(&files, Payload::Compressed).map_err(|error| {
            let mut error = error.context("the built-in image");
            error.kind = Kind::NoImage;
            error
        })?;
        Ok(Self {
            image: Some(name.clone()),
            ..bootable
        })
    }

    /// From a resident image: no file is read.
    #[must_use]
    pub fn resident(image: Image) -> Self {
        let path = |record: FileRecord| record.path;
        let Description {
            loadable,
            payload,
            initrd_size,
            append,
            log,
            kernel,
            initrd,
            layout,
            ..
        } = image.description;
        Self {
            image: Some(image.name),
            loadable,
            payload,
            initrd_size,
            append,
            log,
            kernel: kernel.path,
            initrd: initrd.map(path),
            read_time: Duration::ZERO,
            bytes: Bytes::Resident {
                memory: image.memory,
                layout,
            },
        }
    }

    /// From files; the kernel is read now, the initrd when loading.
    ///
    /// # Errors
    /// [`Kind::Kernel`], [`Kind::Initrd`].
    pub fn files(files: &Files, payload: Payload) -> Result<Self, Error> {
        let start = Instant::now();
        let initrd = files.initrd.as_deref().map(open_initrd).transpose()?;
        let kernel = KernelFile::read(&files.kernel)?;
        let (bytes, loadable) = kernel.payload(payload)?;
        let (log, path) = (kernel.log_source(), kernel.path.clone());
        let unpacked = match bytes {
            Cow::Owned(unpacked) => Some(unpacked),
            Cow::Borrowed(_) => None,
        };
        let bytes = unpacked.unwrap_or(kernel.bytes);
        let read_time = start.elapsed();
        Ok(Self {
            image: None,
            loadable,
            payload,
            initrd_size: initrd.as_ref().map_or(0, |&(_, size)| size),
            append: String::new(),
            log,
            kernel: path,
            initrd: files.initrd.as_deref().map(absolute),
            read_time,
            bytes: Bytes::Files {
                kernel: bytes,
                initrd: initrd.map(|(file, _)| file),
            },
        })
    }

    /// Loads the kernel's segments and the initrd to these physical addresses of a node's memory,
    /// which is also mapped.
    ///
    /// # Errors
    /// [`LoadError`].
    pub fn load(
        &self,
        memory: &Memory,
        node: &mut Mapping,
        kernel: u64,
        initrd: u64,
    ) -> Result<(), LoadError> {
        let segments = self.loadable.segments.iter();
        let segments = segments.map(|segment| (segment, kernel + segment.load_offset));
        match &self.bytes {
            Bytes::Resident {
                memory: image,
                layout,
            } => {
                let copy = |from, to, size| copy_resident(image, from, memory, node, to, size);
                for ((segment, to), &from) in segments.zip(&layout.segments) {
                    copy(from, to, segment.size)?;
                }
                copy(layout.initrd, initrd, self.initrd_size)?;
            }
            Bytes::Files {
                kernel,
                initrd: file,
            } => {
                for (segment, to) in segments {
                    node.write_at(to, segment_bytes(kernel, segment)?)?;
                }
                if let Some(file) = file {
                    node.read_file_at(initrd, file, self.initrd_size)?;
                }
            }
        }
        Ok(())
    }
}

/// Copies bytes of a resident image to a physical address of a node's memory.
fn copy_resident(
    image: &Memory,
    mut from: u64,
    memory: &Memory,
    node: &Mapping,
    to: u64,
    size: u64,
) -> Result<(), LoadError> {
    for Extent { offset, size } in node.extents(to, size)? {
        let copied = memory.copy_from(image, from, offset, size);
        copied.map_err(DriverError::from)?;
        from += size;
    }
    Ok(())
}

/// An absolute path; unchanged if that cannot be determined.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// The bytes of a segment in the kernel's file.
pub(super) fn segment_bytes<'a>(
    kernel: &'a [u8],
    segment: &Segment,
) -> Result<&'a [u8], OutOfRange> {
    let start = usize::try_from(segment.file_offset).ok();
    let size = usize::try_from(segment.size).ok();
    let bytes = start
        .zip(size)
        .and_then(|(start, size)| kernel.get(start..)?.get(..size));
    bytes.ok_or(OutOfRange {
        at: segment.file_offset,
        size: segment.size,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_cut_from_the_file() {
        let segment = |file_offset, size| Segment {
            file_offset,
            load_offset: 0,
            size,
        };
        assert_eq!(segment_bytes(b"abcdef", &segment(2, 3)), Ok(&b"cde"[..]));
        assert_eq!(segment_bytes(b"abcdef", &segment(6, 0)), Ok(&b""[..]));
        for (start, size) in [(5, 2), (7, 0), (u64::MAX, 1), (1, u64::MAX)] {
            assert!(segment_bytes(b"abcdef", &segment(start, size)).is_err());
        }
    }
}
