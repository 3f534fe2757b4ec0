//! Options of `insula image`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use insula_driver::name::Name;
use insula_image::Payload;

#[derive(Debug, Subcommand)]
pub(crate) enum Image {
    /// Make an image resident: read its files once and keep them in memory
    Add(ImageAdd),
    /// Build an image of an installed kernel for nodes used as containers: with an agent and all
    /// drivers
    Build(ImageBuild),
    /// List images
    Ls {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show everything known about images, as JSON
    Inspect {
        /// The images
        #[arg(required = true, value_name = "IMAGE")]
        names: Vec<Name>,
        /// Accepted for uniformity: the output is always JSON
        #[arg(long)]
        json: bool,
    },
    /// Write an image to a new file, from which it can be loaded after the next boot
    Save {
        /// The image
        #[arg(value_name = "IMAGE")]
        name: Name,
        /// The file; only its owner may read it
        #[arg(short, long, value_name = "FILE")]
        output: PathBuf,
    },
    /// Make an image resident that was saved in a file
    Load {
        /// The file
        #[arg(short, long, value_name = "FILE")]
        input: PathBuf,
        /// Another name than that in the file
        #[arg(long)]
        name: Option<Name>,
        /// Print everything known about it, as JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove images; nodes started from them keep running
    Rm {
        /// The images
        #[arg(required = true, value_name = "IMAGE")]
        names: Vec<Name>,
    },
    /// Remove all images of which there is no node, and print their names
    Prune,
}

#[derive(Debug, Args)]
pub(crate) struct ImageAdd {
    /// Name of the image
    pub(crate) name: Name,
    #[command(flatten)]
    pub(crate) files: FilesOptions,
    /// Use the files of an installed kernel, by its release or the beginning of it
    #[arg(long, value_name = "RELEASE", conflicts_with_all = ["kernel", "initrd"])]
    #[arg(required_unless_present = "kernel")]
    pub(crate) installed: Option<String>,
    /// Kernel command line of every node of this image
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        allow_hyphen_values = true
    )]
    #[arg(hide_default_value = true)]
    pub(crate) append: String,
    /// Form of the kernel in the image
    #[arg(long, value_enum, default_value_t)]
    pub(crate) layout: Payload,
    /// Print everything known about it, as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ImageBuild {
    /// Name of the image
    pub(crate) name: Name,
    /// The release of an installed kernel, or the beginning of it
    #[arg(long, value_name = "RELEASE")]
    pub(crate) installed: String,
    /// Folder with insula.ko and insula_virtio.ko for that kernel, if not where DKMS puts them
    #[arg(long, value_name = "FOLDER")]
    pub(crate) module_folder: Option<PathBuf>,
    /// Folder whose content is added to the initial file system
    #[arg(long, value_name = "FOLDER")]
    pub(crate) content: Option<PathBuf>,
    /// Add CRIU with its libraries, by which containers are moved to other nodes
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "/usr/sbin/criu")]
    pub(crate) criu: Option<PathBuf>,
    /// Kernel command line of every node of this image
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        allow_hyphen_values = true
    )]
    #[arg(hide_default_value = true)]
    pub(crate) append: String,
    /// Form of the kernel in the image
    #[arg(long, value_enum, default_value_t)]
    pub(crate) layout: Payload,
    /// Print everything known about it, as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct FilesOptions {
    /// The kernel: a bzImage (such as /boot/vmlinuz-*) or an ELF vmlinux
    #[arg(long, value_name = "FILE")]
    pub(crate) kernel: Option<PathBuf>,
    /// The initrd
    #[arg(long, value_name = "FILE", requires = "kernel")]
    pub(crate) initrd: Option<PathBuf>,
}
