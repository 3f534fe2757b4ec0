//! `create` and `run`: a container of a bundle.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus};

use insula_base::error::Error;
use insula_base::root::Root;
use insula_driver::Driver;
use insula_driver::name::Name;
use insula_exec::container;
use insula_node::NodeSpec;
use serde_json::Value;

use super::arguments::Arguments;
use super::config::Config;
use super::executable::Rootfs;
use super::mounts::{self, OF_THE_NODE, ROOTFS};
use super::node::{Network, NodeKind};
use super::pod::{self, Inside, Member};
use super::rewrite::{self, StandIn};
use super::runtime::Runtime;
use super::state::{Base, Record, State, check_id};
use super::{delegated, exit_code, hooks, mount_points, namespaces, no_id, node, own_words};

/// Options that name the bundle or its configuration.
const BUNDLE: [&str; 4] = ["--bundle", "-b", "--config", "-f"];
const CONFIG: [&str; 2] = ["--config", "-f"];
const FILE: &str = "config.json";
const PID_FILE: &str = "--pid-file";

/// Creates a container, and with the verb `run` runs it.
///
/// # Errors
/// Why it is refused; nothing is left behind.
pub(super) fn create(arguments: &Arguments, runtime: &Runtime) -> Result<ExitCode, Error> {
    let bundle = Bundle::read(arguments)?;
    bundle.check_program()?;
    let driver = Driver::open()?;
    let kind = NodeKind::of(&driver, node::image(&bundle.config)?.as_ref())?;
    if kind == NodeKind::Lightweight {
        return delegated::create(arguments, runtime, (&bundle, &driver));
    }
    let (record, config) = bundle.container(kind)?;
    if record.member.is_none() {
        check_node(&bundle, &record)?;
    }
    let state = State::of(&bundle.id);
    state.create(&record, &config)?;
    let passed = bundle.words(arguments, &record);
    let made = bundle
        .make_mount_points()
        .and_then(|()| match arguments.verb.as_str() {
            "run" => runtime.run_with_signals(&passed.words()),
            _ => runtime.run(&passed.words()),
        });
    let is_kept = made.as_ref().is_ok_and(ExitStatus::success);
    if !is_kept && !bundle.is_known(arguments, runtime) {
        state.remove(Some(&record));
    }
    Ok(exit_code(made?))
}

/// Checks that the container's node can be started.
///
/// # Errors
/// Why it cannot.
pub(super) fn check_node(bundle: &Bundle, record: &Record) -> Result<(), Error> {
    if container::names(&Root::default()).contains(&record.node.to_string()) {
        return Err(has_name(&record.node));
    }
    let driver = Driver::open()?;
    let spec = NodeSpec {
        // It is elsewhere for what stands for the container.
        rootfs: record.spec.rootfs.is_some().then(|| bundle.rootfs.clone()),
        ..record.spec.clone()
    };
    let request = node::request(&spec, record.kernel.as_ref(), &record.node)?;
    insula_node::check_start(&driver, &Root::default(), &request)
}

/// A bundle, as it was read.
pub(super) struct Bundle {
    pub(super) id: String,
    pub(super) path: PathBuf,
    pub(super) value: Value,
    pub(super) config: Config,
    /// The container's root, absolute.
    pub(super) rootfs: PathBuf,
    /// The engine's file for the id of the container's process, absolute.
    given_pid_file: Option<PathBuf>,
}

impl Bundle {
    fn read(arguments: &Arguments) -> Result<Self, Error> {
        let id = arguments.id().ok_or_else(no_id)?;
        check_id(&id)?;
        let path = arguments.bundle();
        let path = path
            .canonicalize()
            .map_err(|error| no_bundle(&path, error))?;
        let file = path.join(arguments.value(&CONFIG).unwrap_or(FILE.as_ref()));
        let bytes = fs::read(&file).map_err(|error| no_bundle(&path, error))?;
        let value: Value =
            serde_json::from_slice(&bytes).map_err(|error| malformed(&file, error))?;
        let config: Config =
            serde_json::from_value(value.clone()).map_err(|error| malformed(&file, error))?;
        let rootfs = match &config.root {
            Some(root) => path.join(&root.path),
            None => return Err(lacks(&file, "root")),
        };
        if config
            .process
            .as_ref()
            .is_none_or(|process| process.args.is_empty())
        {
            return Err(lacks(&file, "process.args"));
        }
        Ok(Self {
            id,
            path,
            value,
            config,
            rootfs,
            given_pid_file: arguments.value(&[PID_FILE]).and_then(absolute),
        })
    }

    /// Checks that there is the container's program.
    fn check_program(&self) -> Result<(), Error> {
        let Some(process) = &self.config.process else {
            return Ok(());
        };
        self.root().check(process)
    }

    /// Its root, in which its programs are looked for.
    pub(super) fn root(&self) -> Rootfs {
        Rootfs::new(&self.rootfs, &self.config.mounts)
    }

    /// What is kept of the container, and the configuration of the process that stands for it.
    fn container(&self, kind: NodeKind) -> Result<(Record, Value), Error> {
        namespaces::check(&self.config)?;
        let sandbox = pod::sandbox(&self.config, &self.id);
        let name = node::name(&self.id)?;
        let node = match &sandbox {
            Some(sandbox) => sandbox.node.clone(),
            None => name.clone(),
        };
        let member = sandbox.map(|sandbox| Member {
            sandbox: sandbox.id,
            name: name.clone(),
        });
        let base = Base::read().map_err(|error| no_bundle(Path::new("/"), error))?;
        let (mounts, placed): (Vec<_>, Vec<_>) =
            mounts::place(&self.config.mounts)?.into_iter().unzip();
        let mounts: Vec<_> = mounts
            .into_iter()
            .map(|mount| rewrite::resolve(mount, &self.path))
            .collect();
        let state = State::of(&self.id);
        let root = state.root();
        let stand_in = StandIn {
            words: own_words(&["run", &self.id])?,
            root: &root,
            base: &base.folders,
            rootfs: &self.rootfs,
            mounts: &mounts,
        };
        let mut config = rewrite::rewrite(&self.value, &self.config, &stand_in);
        hooks::wrap(&mut config, &self.config.hooks, &self.id)?;
        let record = Record {
            id: self.id.clone(),
            bundle: self.path.clone(),
            node,
            spec: node::spec(&self.config, (&self.id, kind), Path::new(ROOTFS))?,
            kernel: self.config.vm.kernel.clone(),
            network: Network::of(&self.config),
            process: self.config.process.clone().unwrap_or_default(),
            root: self.root(),
            mounts: placed,
            hooks: self.config.hooks.clone(),
            base,
            pid_file: self.pid_file(),
            name,
            inside: Inside::of(&self.config, kind, member.is_some())?,
            member,
            kind,
        };
        Ok((record, config))
    }

    /// The file for the id of the container's process.
    pub(super) fn pid_file(&self) -> PathBuf {
        let given = self.given_pid_file.clone();
        given.unwrap_or_else(|| State::of(&self.id).pid_file())
    }

    /// The command line for the ordinary runtime: of the bundle that is kept.
    pub(super) fn words(&self, arguments: &Arguments, record: &Record) -> Arguments {
        let state = State::of(&self.id);
        arguments
            .with_option(PID_FILE, record.pid_file.as_os_str(), &[PID_FILE])
            .with_option("--bundle", state.path().as_os_str(), &BUNDLE)
    }

    /// Whether the ordinary runtime has the container: then that has its end, and with it what is kept here.
    pub(super) fn is_known(&self, arguments: &Arguments, runtime: &Runtime) -> bool {
        let asked = arguments.asking("state", &self.id);
        let answer = runtime.quiet_output(&asked.words());
        answer.is_ok_and(|answer| answer.status.success())
    }

    /// Makes the folders on which the node's agent mounts, and, if the root is only read later, the places of the mounts.
    fn make_mount_points(&self) -> Result<(), Error> {
        make_mount_points(&self.rootfs)?;
        if self.config.root.as_ref().is_none_or(|root| !root.readonly) {
            return Ok(());
        }
        let mounts = mounts::place(&self.config.mounts)?.into_iter();
        let places = mounts.map(|(mount, placed)| {
            let mount = rewrite::resolve(mount, &self.path);
            let is_file = rewrite::is_bind(&mount) && !mount.source.is_dir();
            (placed.destination, !is_file)
        });
        mount_points::make_all(&self.rootfs, places)
    }
}

fn absolute(path: &OsStr) -> Option<PathBuf> {
    std::path::absolute(path).ok()
}

/// Makes the folders on which the node's agent mounts: it cannot where the root is only read.
fn make_mount_points(rootfs: &Path) -> Result<(), Error> {
    for place in OF_THE_NODE {
        // A link there is not followed.
        match fs::create_dir(rootfs.join(place.trim_start_matches('/'))) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                let what = format!("{} has no folder {place}", rootfs.display());
                return Err(Error::new(what).because(error).nothing_kept());
            }
            _ => {}
        }
    }
    Ok(())
}

/// The error of a node that would be called as one of Insula's own containers.
fn has_name(name: &Name) -> Error {
    Error::new(format!(
        "the name '{name}' is that of a container in a node"
    ))
    .untouched()
    .hint("choose another: `insula ps` lists them")
}

fn no_bundle(path: &Path, error: io::Error) -> Error {
    Error::new(format!("the bundle {} cannot be read", path.display()))
        .because(error)
        .untouched()
}

fn malformed(file: &Path, error: serde_json::Error) -> Error {
    Error::new(format!(
        "{} is no container's configuration",
        file.display()
    ))
    .because(error)
    .untouched()
}

fn lacks(file: &Path, key: &str) -> Error {
    Error::new(format!("{} has no `{key}`", file.display())).untouched()
}

#[cfg(test)]
mod tests;
