//! Containers run on kernels of their own by the OCI runtime `insula-oci`, called as engines call it, by podman and by containerd: with their
//! output, status, users, files and terminals; they are joined, stopped and killed as any others, and leave nothing behind.

mod bundles;
mod changes;
mod containerd;
mod copied;
pub(crate) mod cri;
mod delegated;
pub(crate) mod kubelet;
mod network;
pub(crate) mod podman;
pub(crate) mod podman_tests;
mod pods;
mod restrictions;

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use super::agent::make_programs;
use crate::base::support::insula_command::{insula, names, tell, wait_for, with_cleanup};
use crate::base::support::virtio_modules::{NETWORK_MODULES, SOCKET_MODULES, load_sockets, unload};
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;
use crate::host::machine::Emulator;
use crate::host::payload::equipment::MODULES_PATH;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "oci",
    proves: "an OCI runtime runs bundles on kernels of their own",
    machine: Shape {
        emulator: Emulator::Backports,
        thread_per_core: true,
        ..Shape::USUAL
    },
    module: Module::Loaded,
    bases: &[Flavour::V6_12],
    limit: std::time::Duration::from_secs(600),
    soak_limit: None,
    play,
};

pub(crate) const CONTAINERD: Scenario = Scenario {
    name: "containerd",
    proves: "containerd runs containers on kernels of their own",
    limit: std::time::Duration::from_secs(600),
    play: play_containerd,
    ..podman::SCENARIO
};

/// The runtime as its package installs it.
pub(super) const RUNTIME: &str = "/usr/local/sbin/insula-oci";
const COMMAND: &str = "/payload/bin/insula";
/// What serves a container's files, where the process that stands for it finds it: its PATH is not the scenario's.
const VIRTIOFSD: &str = "/usr/local/sbin/virtiofsd";
const PAYLOADS_VIRTIOFSD: &str = "/payload/bin/virtiofsd";
/// The kernel of the containers' nodes, which is not the base's.
const KERNEL: &str = "6.1";
/// The image of which nothing has to be said.
pub(super) const IMAGE: &str = "container";
/// Root of all containers, and a folder that they have as a volume.
const ROOTFS: &str = "/run/oci-root";
const VOLUME: &str = "/run/oci-volume";
const USERS: &str = "root:x:0:0::/root:/bin/sh\nweb:x:33:33::/srv:/bin/sh\n";
/// Waits for a signal, with a child in its process group. Where that gets the signal, too, the child ends by it, with status 143.
const WAITS: &str = "sleep 10000 & trap 'kill -9 $!; wait $!; echo caught, its child ended with $?; exit 9' TERM; echo ready; \
                     while :; do sleep 0.1; done";
/// Modules that the base loads for containers' networks, beside those of nodes'.
const MODULES: [&str; 12] = [
    "veth",
    "xt_addrtype",
    "xt_nat",
    "xt_tcpudp",
    "xt_mark",
    "xt_conntrack",
    "xt_comment",
    "xt_MASQUERADE",
    "nft_compat",
    "x_tables",
    "nft_fib_inet",
    "nft_fib_ipv6",
];
/// The runtime's folder, where no container leaves anything.
pub(super) const FOLDER: &str = "/run/insula/oci";

fn play(context: &Context) -> Result<(), Finding> {
    with_root(context, bundles::play)
}

fn play_containerd(context: &Context) -> Result<(), Finding> {
    podman::with_podman(context, |release| {
        podman::import()?;
        containerd::play(release)
    })
}

/// Makes the containers' root and image, and the runtime a program, as long as `play` is played. It is given the release of
/// their kernel.
pub(super) fn with_root(
    context: &Context,
    play: impl FnOnce(&str) -> Result<(), Finding>,
) -> Result<(), Finding> {
    load_sockets()?;
    symlink(COMMAND, RUNTIME)?;
    symlink(PAYLOADS_VIRTIOFSD, VIRTIOFSD)?;
    make_programs(ROOTFS)?;
    for folder in ["etc", "var"] {
        fs::create_dir(Path::new(ROOTFS).join(folder))?;
    }
    symlink("/run", Path::new(ROOTFS).join("var/run"))?;
    fs::write(Path::new(ROOTFS).join("etc/passwd"), USERS)?;
    fs::create_dir(VOLUME)?;
    let played = with_cleanup(|| {
        let release = context.release(KERNEL)?;
        let modules = format!("{MODULES_PATH}/{release}");
        let build = ["image", "build", IMAGE, "--installed", &release];
        insula(&[&build[..], &["--module-folder", &modules]].concat())?;
        play(&release)
    });
    let removed = [ROOTFS, VOLUME].iter().try_for_each(fs::remove_dir_all);
    let removed = removed.and([RUNTIME, VIRTIOFSD].iter().try_for_each(fs::remove_file));
    played?;
    removed?;
    unload(&[&MODULES[..], &NETWORK_MODULES, &SOCKET_MODULES].concat())
}

/// What a run of a program has given.
#[derive(Debug, PartialEq, Eq)]
struct Ended {
    status: Option<i32>,
    output: String,
    errors: String,
}

impl Ended {
    /// Runs a program with that input.
    fn of(mut command: Command, input: &str) -> Result<Self, Finding> {
        let began = Instant::now();
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = piped.stderr(Stdio::piped()).spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(input.as_bytes())?;
        }
        let ended = child.wait_with_output()?;
        let words = command.get_args().map(|word| word.to_string_lossy());
        let words: Vec<_> = words.filter(|word| !word.starts_with("--")).collect();
        tell(began, &format!("`{} ...`", words.join(" ")));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(Self {
            status: ended.status.code(),
            output: text(&ended.stdout),
            errors: text(&ended.stderr),
        })
    }

    /// Its output; fails unless it ended with this status.
    fn with_status(self, status: i32) -> Result<String, Finding> {
        Finding::unless(self.status == Some(status), || {
            format!("{self:?}, not status {status}")
        })?;
        Ok(self.output)
    }

    /// Fails unless it ended with a status that is no success, and these words.
    fn refused(self, parts: &[&str]) -> Result<(), Finding> {
        let is_said = |part: &&str| self.errors.contains(*part);
        let is_refused = self.status != Some(0) && parts.iter().all(is_said);
        Finding::unless(is_refused, || format!("{self:?}, not refused by {parts:?}"))
    }
}

/// Podman deletes a container that has ended by a process of its own.
fn nothing_is_left() -> Result<(), Finding> {
    wait_for("the container to be gone", || {
        let nodes = names(&["ps", "--all", "--json"])?;
        let is_gone = nodes.is_empty() && !Path::new(FOLDER).exists();
        Ok(is_gone.then_some(()))
    })
}
