//! Starting a container.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use insula_agent::container::{ContainerSpec, Phase};
use rustix::process::Pid;

use super::cgroup::Cgroup;
use super::inside::INSIDE;
use super::namespaces::{self, Carrier};
use super::one::{Container, Files, Parent, folder, remove_folder};
use crate::program::{SELF, set_environment};

/// Starts a container in this folder as its root.
pub(super) fn start(spec: ContainerSpec, root: &Path) -> io::Result<Arc<Container>> {
    let cgroup = Cgroup::of(&spec.name);
    cgroup.create()?;
    fs::create_dir_all(folder(&spec.name))?;
    match in_namespaces(&spec, root) {
        Ok((child, files)) => {
            let pid = Pid::from_child(&child);
            Container::adopt(spec, (pid, Parent::Server), Phase::Running, files)
        }
        Err(error) => {
            cgroup.remove()?;
            remove_folder(&spec.name)?;
            Err(error)
        }
    }
}

/// Starts a container's first process. By a thread of its own, since namespaces are a thread's.
fn in_namespaces(spec: &ContainerSpec, root: &Path) -> io::Result<(Child, Files)> {
    let (output, input) = io::pipe()?;
    let mut command = command(spec, root, input)?;
    let address = spec.address;
    let (child, network) = namespaces::in_thread(move || {
        let network = namespaces::enter_new(address, Carrier::On)?;
        Ok((command.spawn()?, network))
    })?;
    let files = Files {
        network,
        output: File::from(OwnedFd::from(output)),
    };
    Ok((child, files))
}

fn command(spec: &ContainerSpec, root: &Path, output: io::PipeWriter) -> io::Result<Command> {
    let text = |bytes: &[u8]| OsStr::from_bytes(bytes).to_owned();
    let folder = spec.exec.directory.as_deref().unwrap_or(b"/");
    let mut command = Command::new(SELF);
    command.args([INSIDE, &spec.name]);
    command.arg(root).arg(text(folder));
    command.args(spec.exec.words.iter().map(|word| text(word)));
    set_environment(&mut command, &spec.exec);
    command.current_dir("/").stdin(Stdio::null());
    command.stdout(output.try_clone()?).stderr(output);
    Ok(command)
}
