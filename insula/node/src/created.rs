//! Nodes that were created but not started yet (`insula create`): files in the command's private folder,
//! which is empty after a boot, as the module is of nodes.
//!
//! Such a node has nothing of the machine: no core, no memory, no address. What it asks for is looked up
//! and taken when it is started. A node of the module comes before a file of its name, which a command
//! that was killed may have left.

use std::fs;
use std::io::{self, Write};
use std::path::{PathBuf, absolute};
use std::time::{SystemTime, UNIX_EPOCH};

use insula_base::error::{Error, Kind};
use insula_base::root::Root;
use insula_base::state::{AtomicFile, RUN};
use insula_base::topology::BaseMemory;
use insula_base::units::Size;
use insula_driver::Driver;
use insula_driver::name::Name;
use insula_image::{Files, Payload};
use serde::{Deserialize, Serialize};

use super::copy;
use super::events::{NodeEvent, Status};
use super::naming::{check_name, name_taken, pick_name};
use super::run::{check_start, module_failed, snapshot_of};
use super::{Attachments, NodeSpec, NodeView, RunRequest, Source};
use crate::cores::CoreRequest;

/// Folder of the files, in [`RUN`].
const FOLDER: &str = "created";
const ENDING: &str = ".json";

/// A node that was created, and not started yet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CreatedNode {
    /// Its name.
    pub name: Name,
    /// What it is to be.
    pub spec: NodeSpec,
    /// The kernel's file, of a node without an image.
    pub kernel: Option<PathBuf>,
    /// The initrd's file, if it has one.
    pub initrd: Option<PathBuf>,
    /// The form in which its kernel is loaded.
    pub payload: Payload,
    /// Whether it is removed when it has stopped without failure.
    pub remove: bool,
    /// When it was created, in seconds since 1970.
    pub created_unix_s: u64,
}

/// Checks a node as [`start`](super::start) does, and writes down what it is to be. What only lacks now,
/// since another node has it, is no reason to refuse it.
///
/// # Errors
/// Why it could never be started, or its name is taken.
pub fn create(driver: &Driver, root: &Root, request: &RunRequest) -> Result<CreatedNode, Error> {
    let name = pick_name(driver, root, request)?;
    check(driver, root, request)?;
    let node = CreatedNode::new(name, request);
    node.write_new(root)?;
    // Another command may have given a node this name since.
    let taken = is_in_module(driver, &node.name);
    if !matches!(taken, Ok(false)) {
        remove_file(root, &node.name)?;
        return Err(taken.err().unwrap_or_else(|| name_taken(&node.name)));
    }
    record(root, NodeEvent::now(node.name.as_str(), Status::Create));
    Ok(node)
}

/// Refuses what can never be started on this machine.
fn check(driver: &Driver, root: &Root, request: &RunRequest) -> Result<(), Error> {
    if let Some(snapshot) = snapshot_of(driver, &request.source) {
        return copy::check(&snapshot, request);
    }
    check_machine(driver, root, &request.spec)?;
    match check_start(driver, root, request) {
        Err(error) if error.kind == Kind::Unavailable => Ok(()),
        checked => checked,
    }
}

/// Refuses more cores or memory than the whole machine has.
fn check_machine(driver: &Driver, root: &Root, spec: &NodeSpec) -> Result<(), Error> {
    let (machine, cpus) = driver.machine().map_err(module_failed)?;
    // Core 0 is the base's.
    let asked = match spec.cores() {
        CoreRequest::Count(count) => count as usize,
        CoreRequest::List(list) => list.0.len(),
    };
    let there = cpus.len().saturating_sub(1);
    if asked > there {
        return Err(too_many_cores(asked, there));
    }
    let Some(base) = BaseMemory::read(root) else {
        return Ok(());
    };
    let there = base.total.saturating_add(machine.pool_total);
    match spec.memory_size() > there {
        true => Err(too_much_memory(Size(spec.memory_size()), Size(there))),
        false => Ok(()),
    }
}

/// All nodes that were created, by name; without those that the module has.
///
/// # Errors
/// When a file cannot be read, or the module fails.
pub fn created(driver: &Driver, root: &Root) -> Result<Vec<CreatedNode>, Error> {
    let mut found = Vec::new();
    for name in created_names(root) {
        if !is_in_module(driver, &name)? {
            // One that was removed meanwhile is left out.
            found.extend(read(root, &name)?);
        }
    }
    Ok(found)
}

/// Names of all nodes that were created; none without the right to ask.
#[must_use]
pub fn created_names(root: &Root) -> Vec<Name> {
    let files = root.names(&format!("{RUN}/{FOLDER}")).into_iter();
    let names = files.filter_map(|file| file.strip_suffix(ENDING)?.parse().ok());
    names.collect()
}

/// The node of that name that was created, if there is one and the module has none.
///
/// # Errors
/// When its file cannot be read, or the module fails.
pub fn find_created(
    driver: &Driver,
    root: &Root,
    name: &Name,
) -> Result<Option<CreatedNode>, Error> {
    match is_created(driver, root, name)? {
        true => read(root, name),
        false => Ok(None),
    }
}

/// Whether a node of that name was created, and the module has none.
///
/// # Errors
/// When the module fails.
pub fn is_created(driver: &Driver, root: &Root, name: &Name) -> Result<bool, Error> {
    Ok(has_file(root, name) && !is_in_module(driver, name)?)
}

/// Removes a node that was created.
///
/// # Errors
/// When its file cannot be removed.
pub fn remove_created(root: &Root, name: &Name) -> Result<(), Error> {
    remove_file(root, name)?;
    record(root, NodeEvent::now(name.as_str(), Status::Remove));
    Ok(())
}

/// Forgets the file of a node that has been started.
///
/// # Errors
/// When it cannot be removed.
pub fn forget_created(root: &Root, name: &Name) -> Result<(), Error> {
    remove_file(root, name)
}

/// Gives a node that was created another name.
pub(super) fn rename(
    driver: &Driver,
    root: &Root,
    node: &CreatedNode,
    new: &Name,
) -> Result<(), Error> {
    check_name(new)?;
    if is_in_module(driver, new)? {
        return Err(name_taken(new));
    }
    let renamed = CreatedNode {
        name: new.clone(),
        ..node.clone()
    };
    renamed.write_new(root)?;
    remove_file(root, &node.name)
}

/// Whether there is a file of that name.
pub(super) fn has_file(root: &Root, name: &Name) -> bool {
    root.exists(&format!("{RUN}/{FOLDER}/{name}{ENDING}"))
}

/// The error of a command that needs a node that was started.
pub(super) fn not_started(name: &Name) -> Error {
    let what = format!("the node '{name}' was created, and not started yet");
    Error::of(Kind::NotRunning, what)
        .untouched()
        .hint(format!("start it with `insula start {name}`"))
}

impl CreatedNode {
    fn new(name: Name, request: &RunRequest) -> Self {
        let (kernel, initrd, payload) = match &request.source {
            Source::Image(_) => (None, None, Payload::default()),
            Source::Files(files, payload) => {
                // It may be started in another folder.
                let whole = |path: &PathBuf| absolute(path).unwrap_or_else(|_| path.clone());
                let initrd = files.initrd.as_ref().map(whole);
                (Some(whole(&files.kernel)), initrd, *payload)
            }
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            name,
            spec: request.spec.clone(),
            kernel,
            initrd,
            payload,
            remove: request.remove,
            created_unix_s: now.map_or(0, |now| now.as_secs()),
        }
    }

    /// What is to be started. Its attachments are looked up now.
    ///
    /// # Errors
    /// When one of them has gone.
    pub fn request(&self) -> Result<RunRequest, Error> {
        let source = match (&self.spec.image, &self.kernel) {
            (None, Some(kernel)) => {
                let files = Files {
                    kernel: kernel.clone(),
                    initrd: self.initrd.clone(),
                };
                Source::Files(files, self.payload)
            }
            (Some(image), _) => Source::Image(image.clone()),
            (None, None) => return Err(unreadable(&self.name)),
        };
        Ok(RunRequest {
            source,
            name: Some(self.name.clone()),
            cores: self.spec.cores(),
            attachments: Attachments::find(&self.spec)?,
            spec: self.spec.clone(),
            described: None,
            remove: self.remove,
            is_created: true,
            is_attached: false,
        })
    }

    /// Its state for users.
    #[must_use]
    pub fn view(&self) -> NodeView {
        NodeView {
            name: self.name.to_string(),
            state: "created",
            watched: !self.spec.watch.is_empty() || self.spec.watch_rules.is_some(),
            address: self.spec.ip,
            labels: self.spec.label.clone(),
            image: self.spec.image.as_ref().map(ToString::to_string),
            ..NodeView::default()
        }
    }

    /// Writes its file, if no other node was created by this name.
    fn write_new(&self, root: &Root) -> Result<(), Error> {
        let write = || -> io::Result<()> {
            let folder = root.path(&format!("{RUN}/{FOLDER}"));
            fs::create_dir_all(&folder)?;
            let file = AtomicFile::create(&folder)?;
            file.file().write_all(&serde_json::to_vec(self)?)?;
            file.persist_new(&path(root, &self.name))
                .map_err(|(error, _)| error)
        };
        write().map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => name_taken(&self.name),
            _ => not_written(&self.name, error),
        })
    }
}

fn path(root: &Root, name: &Name) -> PathBuf {
    root.path(&format!("{RUN}/{FOLDER}/{name}{ENDING}"))
}

fn read(root: &Root, name: &Name) -> Result<Option<CreatedNode>, Error> {
    match fs::read(path(root, name)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unreadable(name).because(error)),
        Ok(bytes) => match serde_json::from_slice(&bytes) {
            Ok(node) => Ok(Some(node)),
            Err(error) => Err(unreadable(name).because(error)),
        },
    }
}

fn remove_file(root: &Root, name: &Name) -> Result<(), Error> {
    match fs::remove_file(path(root, name)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(not_written(name, error)),
        _ => Ok(()),
    }
}

fn is_in_module(driver: &Driver, name: &Name) -> Result<bool, Error> {
    let names = driver.node_names().map_err(module_failed)?;
    Ok(names.contains(&name.to_abi()))
}

/// Best effort: it is done.
fn record(root: &Root, event: NodeEvent) {
    let _ = event.record(root);
}

fn unreadable(name: &Name) -> Error {
    Error::new(format!("what the node '{name}' is to be cannot be read"))
        .unchanged()
        .hint(format!("`insula rm {name}` removes it"))
}

fn not_written(name: &Name, error: io::Error) -> Error {
    Error::new(format!("the file of the node '{name}' cannot be changed"))
        .because(error)
        .unchanged()
}

fn too_many_cores(asked: usize, there: usize) -> Error {
    Error::new(format!(
        "{asked} cores requested, but nodes of this machine can have {there} at most"
    ))
    .untouched()
    .about("cpus")
    .hint("request fewer: `insula machine info` lists them")
}

fn too_much_memory(asked: Size, there: Size) -> Error {
    Error::new(format!(
        "{asked} of memory requested, but this machine has {there}"
    ))
    .untouched()
    .about("memory")
    .hint("request less")
}

#[cfg(test)]
mod tests {
    use insula_base::root::fake::Tree;

    use super::*;

    fn node(name: &str) -> CreatedNode {
        CreatedNode {
            name: name.parse().unwrap(),
            spec: NodeSpec {
                image: Some("debian".parse().unwrap()),
                program: Some(vec!["/bin/server".into()]),
                label: vec!["tier=front".parse().unwrap()],
                ..NodeSpec::default()
            },
            kernel: None,
            initrd: None,
            payload: Payload::default(),
            remove: true,
            created_unix_s: 7,
        }
    }

    #[test]
    fn a_created_node_reads_back_until_it_is_forgotten() {
        let tree = Tree::new(&[]);
        let root = tree.root();
        let web = node("web");
        web.write_new(&root).unwrap();
        assert_eq!(read(&root, &web.name).unwrap(), Some(web.clone()));
        assert_eq!(created_names(&root), std::slice::from_ref(&web.name));
        assert!(has_file(&root, &web.name) && !has_file(&root, &node("db").name));
        let taken = node("web").write_new(&root).unwrap_err();
        assert_eq!(taken.kind, Kind::Unavailable);
        for _ in 0..2 {
            forget_created(&root, &web.name).unwrap();
        }
        assert_eq!(read(&root, &web.name).unwrap(), None);
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        let tree = Tree::new(&[(&format!("{RUN}/{FOLDER}/web.json"), "{}")]);
        let refused = read(&tree.root(), &node("web").name).unwrap_err();
        assert!(refused.hint.contains("insula rm web"));
    }

    #[test]
    fn it_has_nothing_before_it_is_started() {
        let view = node("web").view();
        assert_eq!(
            (view.state, view.starts, view.memory_bytes),
            ("created", 0, 0)
        );
        assert_eq!(view.labels.len(), 1);
        let request = node("web").request().unwrap();
        assert!(request.is_created && request.remove);
    }
}
