//! Commands of podman that are others here.

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

/// The way to do here what a command of podman does.
fn here(command: &str) -> Option<&'static str> {
    let found = COMMANDS.iter().find(|(names, _)| names.contains(&command));
    found.map(|(_, way)| *way)
}

/// Adds to an error the way to do here what podman has a command for.
pub(super) fn explained(mut error: clap::Error) -> clap::Error {
    let is_unknown = error.kind() == ErrorKind::InvalidSubcommand;
    let named = error.get(ContextKind::InvalidSubcommand);
    if let (true, Some(ContextValue::String(command))) = (is_unknown, named)
        && let Some(way) = here(command)
    {
        let tip = ContextValue::StyledStrs(vec![StyledStr::from(way)]);
        for kind in [ContextKind::SuggestedSubcommand, ContextKind::Suggested] {
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
    fn what_is_named_exists() {
        let command = Cli::command();
        let known: BTreeSet<_> = command
            .get_subcommands()
            .map(clap::Command::get_name)
            .collect();
        for (names, way) in COMMANDS {
            assert!(names.iter().all(|name| !known.contains(name)), "{names:?}");
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
