//! What a node's spec attaches to it of the base's files and network, looked up before anything is
//! taken.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use insula_agent::options::Options;
use insula_base::error::Error;
use insula_base::root::Root;
use insula_driver::name::Name;
use insula_rules::Rules;

use super::{Claims, NodeRoot, NodeSpec, RootImage, RootImageRecord};
use super::{networks, watch};
use crate::attachment::{DiskFile, NamedNetwork, Networking, Volume};
use crate::networks::Networks;

/// Word on the lightweight kernel's command line that lets its programs use ports.
const ALLOW_PORTS: &str = "ioperm";

/// A node's attachments, all of which exist.
#[derive(Clone, Debug, Default)]
pub struct Attachments {
    /// Its root, if that is not its image's initial file system.
    pub root: Option<NodeRoot>,
    /// Its disks, in order; the first is its root if that is a disk.
    pub disks: Vec<DiskFile>,
    /// Folders of the base that it has beside its root.
    pub volumes: Vec<Volume>,
    /// Its network, if it has one.
    pub network: Option<Networking>,
    /// What it is watched for, if it is.
    pub watch: Option<Rules>,
}

/// A node's network, which `find` finds if it has a name.
fn network(
    spec: &NodeSpec,
    find: impl FnOnce(&Name) -> Result<NamedNetwork, Error>,
) -> Result<Option<Networking>, Error> {
    let Some(mut network) = spec.networking() else {
        return Ok(None);
    };
    if let Some(name) = spec.network.name() {
        let named = find(name)?;
        if named.internal && !network.publish.is_empty() {
            return Err(not_published(name));
        }
        network.named = Some(named);
    }
    Ok(Some(network))
}

fn not_published(name: &Name) -> Error {
    let what = format!("the network '{name}' is internal: no port leads to a node on it");
    Error::new(what)
        .untouched()
        .about("publish")
        .hint("choose another network, or remove --publish")
}

impl Attachments {
    /// Looks up what a spec attaches.
    ///
    /// # Errors
    /// The first that does not exist or is not suitable; nothing was touched.
    pub fn find(spec: &NodeSpec) -> Result<Self, Error> {
        Self::find_with(spec, |name| networks::find(&Root::default(), name))
    }

    /// Looks up what a spec attaches, of which the network may not have been created yet.
    ///
    /// # Errors
    /// As [`Attachments::find`].
    pub fn find_among(spec: &NodeSpec, networks: &Networks) -> Result<Self, Error> {
        Self::find_with(spec, |name| networks.get(name).cloned())
    }

    fn find_with(
        spec: &NodeSpec,
        find_network: impl FnOnce(&Name) -> Result<NamedNetwork, Error>,
    ) -> Result<Self, Error> {
        let root = spec.rootfs.as_deref();
        let root = root
            .map(|path| NodeRoot::find(path, spec.overlay))
            .transpose()?;
        let disks = spec
            .disk
            .iter()
            .map(DiskFile::find)
            .collect::<Result<_, _>>()?;
        let volumes = spec
            .volume
            .iter()
            .map(Volume::find)
            .collect::<Result<_, _>>()?;
        Ok(Self {
            volumes,
            disks: NodeRoot::before(root.as_ref(), disks),
            root,
            network: network(spec, find_network)?,
            watch: watch::rules(spec)?,
        })
    }

    /// The node's own part of its command line: the user's text, its rights, then the agent's options.
    #[must_use]
    pub fn command_line(&self, spec: &NodeSpec) -> String {
        let agent = Options {
            root: self
                .root
                .as_ref()
                .filter(|_| !spec.unmounted_root)
                .map(|root| root.for_agent(spec.overlay)),
            environment: spec
                .env
                .iter()
                .map(|one| one.to_string().into_bytes())
                .collect(),
            directory: spec
                .workdir
                .as_ref()
                .map(|path| path.as_os_str().as_bytes().to_owned()),
            volumes: self.volumes.iter().map(Volume::for_agent).collect(),
            network: self.network.is_some(),
            run: spec
                .words()
                .map(|word| word.as_bytes().to_owned())
                .collect(),
            interactive: spec.interactive,
            terminal: spec.tty,
            ..Options::default()
        };
        let ports = if spec.allow_ioperm { ALLOW_PORTS } else { "" };
        let agent = agent.command_line();
        let parts = [&spec.append, ports, &agent].map(str::trim);
        let parts = parts.into_iter().filter(|part| !part.is_empty());
        parts.collect::<Vec<_>>().join(" ")
    }

    /// The folder of the base that is its root, if one is.
    #[must_use]
    pub fn folder(&self) -> Option<&Path> {
        self.root.as_ref().and_then(NodeRoot::folder)
    }

    /// The image in memory that is its root, if one is.
    #[must_use]
    pub fn root_image(&self) -> Option<&RootImageRecord> {
        let image = self.root.as_ref().and_then(NodeRoot::image);
        image.map(RootImage::record)
    }

    /// What no other node may have.
    #[must_use]
    pub fn claims(&self) -> Claims<'_> {
        Claims {
            network: self.network.as_ref(),
            disks: &self.disks,
            first_is_root: self.root.as_ref().is_some_and(|root| root.disk().is_some()),
        }
    }
}
