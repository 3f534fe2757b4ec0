//! Commands and options of podman that are others here.

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Each with the way to do it here.
const COMMANDS: &[(&[&str], &str)] = &[
    (
        &["build", "pull"],
        "`insula image build` makes an image of an installed kernel, `insula image add` of any",
    ),
    (
        &["commit"],
        "`insula snapshot NODE NAME` makes an image of a running node",
    ),
    (
        &["container"],
        "its commands are insula's own: `insula ps`, `insula run`, `insula rm` and others",
    ),
    (
        &["diff", "mount", "umount", "unmount"],
        "a node's root is the folder of its --rootfs, which `insula inspect` shows",
    ),
    (
        &["history", "manifest", "tag", "untag"],
        "images are kernels, without layers and tags: `insula image inspect` shows one",
    ),
    (
        &["init", "unshare"],
        "it is not needed: each node has a kernel of its own",
    ),
    (
        &["generate", "auto-update"],
        "`insula up` starts what a file describes, also at each boot by the service `insula`",
    ),
    (
        &["secret"],
        "folders with secrets are given by `insula run -v FOLDER:MOUNT-POINT:ro`",
    ),
    (
        &["compose", "kube", "play", "pod"],
        "`insula up` starts the nodes and servers of a file",
    ),
    (
        &["export"],
        "`insula checkpoint --export` writes a container to a folder",
    ),
    (
        &["healthcheck"],
        "nodes are watched: see --on-hang and --watch of `insula run`",
    ),
    (&["images"], "`insula image ls` lists images"),
    (
        &["import", "load"],
        "`insula image load` reads an image from a file, `insula restore --import` a container",
    ),
    (
        &["info", "system"],
        "`insula machine info` shows the machine",
    ),
    (
        &["login", "logout", "push", "search"],
        "there are no registries: images are of kernels of this system",
    ),
    (&["rmi"], "`insula image rm` removes images"),
    (&["save"], "`insula image save` writes an image to a file"),
    (
        &["volume"],
        "folders are given by `insula run -v FOLDER:MOUNT-POINT`; see also --rootfs and --disk there",
    ),
];

/// Options of `podman run`, each with the way to do it here.
const OPTIONS: &[(&[&str], &str)] = &[
    (
        &[
            "--privileged",
            "--cap-add",
            "--cap-drop",
            "--security-opt",
            "--userns",
            "--uidmap",
            "--gidmap",
        ],
        "it is not needed: programs have all rights in the node's own kernel, and none in others; see also --isolation",
    ),
    (
        &[
            "--pid",
            "--ipc",
            "--uts",
            "--cgroupns",
            "--cgroup-parent",
            "--shm-size",
        ],
        "it is not needed: each node has a kernel of its own",
    ),
    (
        &["--entrypoint"],
        "the program and its arguments follow the image",
    ),
    (
        &[
            "--user",
            "-u",
            "--group-add",
            "--umask",
            "--ulimit",
            "--pids-limit",
        ],
        "the node's program is root's; those of `insula exec -u USER` are others'",
    ),
    (
        &["--net", "--link", "--dns", "--dns-search", "--add-host"],
        "nodes with --network know each other and all else by the names that this system resolves",
    ),
    (
        &["-P", "--publish-all", "--expose"],
        "each port is published by -p PORT:PORT",
    ),
    (
        &["--pull", "--arch", "--platform"],
        "there are no registries: images are of kernels of this system",
    ),
    (
        &["--mount", "--volumes-from", "--image-volume"],
        "folders are given by -v FOLDER:MOUNT-POINT, disks by --disk",
    ),
    (
        &["--read-only", "--tmpfs"],
        "with --overlay all changes of the root are in the node's memory",
    ),
    (&["--init"], "a node's agent reaps orphans"),
    (
        &[
            "--cpuset-cpus",
            "--cpu-shares",
            "-c",
            "--cpu-quota",
            "--cpu-period",
        ],
        "cores are given whole, by --cpus COUNT or --cpu-list LIST",
    ),
    (
        &["--cpuset-mems", "--memory-reservation", "--memory-swap"],
        "memory is given whole, by --memory SIZE[,numa=N]",
    ),
    (
        &[
            "--health-cmd",
            "--health-interval",
            "--health-retries",
            "--health-timeout",
        ],
        "nodes are watched: see --on-hang and --watch",
    ),
    (
        &["--stop-signal", "--stop-timeout"],
        "`insula stop -t SECONDS` presses the power button, and waits so long",
    ),
    (&["--gpus"], "a PCI function is given by --device ADDRESS"),
    (
        &["--replace"],
        "`insula rm --force NODE` removes the node before",
    ),
    (
        &["--cidfile", "--pidfile"],
        "the node's name is printed, or given by --name",
    ),
    (
        &["--log-driver", "--log-opt"],
        "the node's log is its kernel's: `insula logs`",
    ),
    (
        &["--sysctl"],
        "parameters of the kernel are given by --append sysctl.NAME=VALUE",
    ),
    (
        &["--runtime", "--annotation"],
        "containers of podman are run on nodes by `podman --runtime insula-oci run`",
    ),
];

/// The way to do here what podman has this for.
fn here(table: &[(&[&str], &'static str)], word: &str) -> Option<&'static str> {
    let found = table.iter().find(|(names, _)| names.contains(&word));
    found.map(|(_, way)| *way)
}

/// What of an error's context is replaced by the way to do it here.
const SUGGESTIONS: [ContextKind; 3] = [
    ContextKind::SuggestedSubcommand,
    ContextKind::SuggestedArg,
    ContextKind::Suggested,
];

/// Adds to an error the way to do here what podman has a command or an option for.
pub(super) fn explained(mut error: clap::Error) -> clap::Error {
    let (table, unknown) = match error.kind() {
        ErrorKind::InvalidSubcommand => (COMMANDS, ContextKind::InvalidSubcommand),
        ErrorKind::UnknownArgument => (OPTIONS, ContextKind::InvalidArg),
        _ => return error,
    };
    if let Some(ContextValue::String(word)) = error.get(unknown)
        && let Some(way) = here(table, word)
    {
        let tip = ContextValue::StyledStrs(vec![StyledStr::from(way)]);
        for kind in SUGGESTIONS {
            error.remove(kind);
        }
        error.insert(ContextKind::Suggested, tip);
    }
    error
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::{CommandFactory, Parser};

    use super::*;
    use crate::cli::Cli;

    fn told(command: &str) -> String {
        let error = Cli::try_parse_from(["insula", command]).unwrap_err();
        explained(error).to_string()
    }

    #[test]
    fn podmans_commands_are_explained() {
        for (names, way) in COMMANDS {
            for name in *names {
                let told = told(name);
                assert!(told.contains(way), "{told}");
                assert!(!told.contains("similar"), "{told}");
            }
        }
        assert!(told("stopp").contains("similar"));
    }

    #[test]
    fn podmans_options_are_explained() {
        for (names, way) in OPTIONS {
            for name in *names {
                let words = ["insula", "run", "--image", "deb", name];
                let told = explained(Cli::try_parse_from(words).unwrap_err()).to_string();
                assert!(told.contains(way), "{name}: {told}");
                assert!(!told.contains("similar"), "{told}");
            }
        }
    }

    #[test]
    fn what_is_named_exists() {
        let command = Cli::command();
        let known: BTreeSet<_> = command
            .get_subcommands()
            .map(clap::Command::get_name)
            .collect();
        let unknown = |names: &[&str]| names.iter().all(|name| !known.contains(name));
        assert!(COMMANDS.iter().all(|(names, _)| unknown(names)));
        for (_, way) in COMMANDS.iter().chain(OPTIONS) {
            for named in way
                .split('`')
                .filter_map(|text| text.strip_prefix("insula "))
            {
                let verb = named.split(' ').next().unwrap();
                assert!(known.contains(verb), "{named}");
            }
        }
    }
}
