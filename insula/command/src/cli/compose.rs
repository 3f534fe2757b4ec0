//! Options of `insula up` and `insula down`.

use std::path::PathBuf;

use clap::Args;
use insula_driver::name::Name;

/// Projects, and how long their nodes have to stop.
#[derive(Debug, Args)]
pub(crate) struct Projects {
    /// File, or folder with *.toml; may be given several times [default: insula.toml]
    #[arg(short, long, value_name = "PATH")]
    pub(crate) file: Vec<PathBuf>,
    /// Seconds to wait for a node to power off before it is killed
    #[arg(short, long, value_name = "SECONDS", default_value_t = 10)]
    pub(crate) time: u32,
    /// Print what was done as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Up {
    #[command(flatten)]
    pub(crate) projects: Projects,
    /// Project name, instead of the file's
    #[arg(short, long, value_name = "NAME")]
    pub(crate) project: Option<Name>,
    /// Only check, and show what would be done
    #[arg(long, visible_alias = "check")]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Down {
    #[command(flatten)]
    pub(crate) projects: Projects,
    /// Project by its name, whatever its file; may be given several times
    #[arg(short, long, value_name = "NAME")]
    pub(crate) project: Vec<Name>,
    /// Also remove the images that were added for it
    #[arg(long)]
    pub(crate) images: bool,
}
