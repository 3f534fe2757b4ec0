//! Images as JSON shows them.

use insula_driver::CallError;
use insula_driver::name::Name;
use insula_image::{
    Description, FileRecord, LogSource, Opened, Payload, ResidentLayout, Snapshot, SnapshotDisk,
};
use insula_node::ChunkRecord;
use kimage::{Format, Segment};
use serde::Serialize;

/// An image that nodes start from.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub(crate) enum ImageView {
    /// A kernel.
    Kernel(KernelView),
    /// A node that has booted.
    Snapshot(SnapshotView),
}

/// The same with all that is known.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub(crate) enum ImageDetails {
    /// A kernel.
    Kernel(Box<KernelDetails>),
    /// A node that has booted.
    Snapshot(SnapshotView),
}

/// An image that was inspected: also where it lies.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct InspectedImage {
    #[serde(flatten)]
    image: ImageDetails,
    /// Its memory.
    memory: Vec<ChunkRecord>,
}

/// A resident kernel.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct KernelView {
    /// The image's name.
    name: String,
    /// The kernel's release.
    release: String,
    /// The form in which it is resident.
    layout: Payload,
    /// Size of the image in memory, in bytes.
    size_bytes: u64,
    /// Size of its initrd, 0 for none.
    initrd_bytes: u64,
    /// Kernel command line of its nodes.
    append: String,
    /// When it was added, in seconds since 1970.
    added_unix_s: u64,
}

/// A resident kernel with all that is known, but for the bytes that only a loader understands.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct KernelDetails {
    #[serde(flatten)]
    view: KernelView,
    /// The file that it was made from.
    kernel: FileRecord,
    /// The file of its initrd.
    initrd: Option<FileRecord>,
    /// Format of the kernel.
    format: Format,
    /// Bytes of memory that the kernel needs before it can use any other.
    footprint_bytes: u64,
    /// Alignment of its load address.
    alignment_bytes: u64,
    /// Its parts.
    segments: Vec<Segment>,
    /// Where these are in the image's memory.
    offsets: ResidentLayout,
    /// Whether the log of its nodes can be read.
    log: LogView,
    /// The project whose file describes it, if any.
    project: Option<String>,
}

/// Whether a log can be read.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct LogView {
    readable: bool,
    /// Why it cannot.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// A snapshot.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct SnapshotView {
    /// The image's name.
    name: String,
    /// The node that it was taken of.
    node: String,
    /// The release of its kernel.
    release: String,
    /// Size of the image in memory, in bytes.
    size_bytes: u64,
    /// Size of the node's memory, in bytes.
    memory_bytes: u64,
    /// Number of the node's cores.
    cores: usize,
    /// Its disks, in order.
    disks: Vec<SnapshotDisk>,
    /// When it was taken, in seconds since 1970.
    added_unix_s: u64,
}

impl ImageDetails {
    /// A kernel.
    pub(super) fn kernel(name: &Name, description: &Description) -> Self {
        Self::Kernel(Box::new(KernelDetails::new(name, description)))
    }
}

impl InspectedImage {
    /// An image that is open.
    ///
    /// # Errors
    /// The module's.
    pub(super) fn new(opened: &Opened) -> Result<Self, CallError> {
        let (image, memory) = match opened {
            Opened::Kernel(image) => (
                ImageDetails::kernel(&image.name, &image.description),
                &image.memory,
            ),
            Opened::Snapshot(image) => (
                ImageDetails::Snapshot(SnapshotView::new(&image.name, &image.description)),
                &image.memory,
            ),
        };
        let memory = memory.chunks()?.into_iter().map(ChunkRecord::from);
        Ok(Self {
            image,
            memory: memory.collect(),
        })
    }
}

impl KernelView {
    pub(super) fn new(name: &Name, description: &Description) -> Self {
        Self {
            name: name.to_string(),
            release: description.loadable.release.clone(),
            layout: description.payload,
            size_bytes: description.layout.size,
            initrd_bytes: description.initrd_size,
            append: description.append.clone(),
            added_unix_s: description.added_unix_s,
        }
    }
}

impl KernelDetails {
    fn new(name: &Name, description: &Description) -> Self {
        let loadable = &description.loadable;
        let reason = match &description.log {
            LogSource::Unreadable(reason) => Some(reason.clone()),
            LogSource::Layout(_) | LogSource::File { .. } => None,
        };
        Self {
            view: KernelView::new(name, description),
            kernel: description.kernel.clone(),
            initrd: description.initrd.clone(),
            format: loadable.format,
            footprint_bytes: loadable.footprint,
            alignment_bytes: loadable.alignment,
            segments: loadable.segments.clone(),
            offsets: description.layout.clone(),
            log: LogView {
                readable: reason.is_none(),
                reason,
            },
            project: description.project.clone(),
        }
    }
}

impl SnapshotView {
    pub(super) fn new(name: &Name, description: &Snapshot) -> Self {
        Self {
            name: name.to_string(),
            node: description.node.clone(),
            release: description.release.clone(),
            size_bytes: description.size(),
            memory_bytes: description.memory_size(),
            cores: description.cpus.len(),
            disks: description.disks.clone(),
            added_unix_s: description.added_unix_s,
        }
    }
}
