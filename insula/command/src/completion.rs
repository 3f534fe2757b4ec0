//! Shell completion: from the definition of the command line, and from what there is on the
//! machine.
//!
//! The shell calls `insula` itself, at each press of the tab key; what `insula completion SHELL`
//! prints, and the package installs, only registers that.

use std::ffi::OsString;

use clap::{Arg, Command, ValueEnum};
use clap_complete::CompleteEnv;
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};
use clap_complete::env::{Bash, EnvCompleter, Fish, Zsh};
use insula_abi as abi;
use insula_base::root::Root;
use insula_driver::{CallError, Driver};
use insula_image::installed_releases;
use insula_node::created_names;
use insula_node::networks::network_names;
use insula_postmortem::Store;

use super::cli::operands;
use super::{Failure, output};

/// Name of the program, and of the variable by which the shell requests completions.
const PROGRAM: &str = "insula";
const VARIABLE: &str = "INSULA_COMPLETE";

/// Supported shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Shell {
    /// Bash
    Bash,
    /// Fish
    Fish,
    /// Zsh
    Zsh,
}

/// Answers a completion request of a shell, if this is one, and ends the process.
pub(super) fn answer(definition: fn() -> Command) {
    let definition = || {
        let words: Vec<_> = std::env::args_os().collect();
        completable(definition(), &words)
    };
    let completer = CompleteEnv::with_factory(definition).var(VARIABLE);
    completer.bin(PROGRAM).completer(PROGRAM).complete();
}

/// Prints the script that registers completion with a shell.
pub(super) fn register(shell: Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    let shell: &dyn EnvCompleter = match shell {
        Shell::Bash => &Bash,
        Shell::Fish => &Fish,
        Shell::Zsh => &Zsh,
    };
    shell.write_registration(VARIABLE, PROGRAM, PROGRAM, PROGRAM, &mut script)?;
    output::print(String::from_utf8_lossy(&script).trim_start())
}

/// The definition with completion candidates for these words. The arguments of subcommands are not there before it
/// is built.
fn completable(mut definition: Command, words: &[OsString]) -> Command {
    definition.build();
    with_candidates(operands::declared(definition, words))
}

/// Adds completion candidates to arguments, by the name of their value.
fn with_candidates(command: Command) -> Command {
    command
        .mut_args(candidates_of)
        .mut_subcommands(with_candidates)
}

fn candidates_of(argument: Arg) -> Arg {
    let word = argument.get_value_names().and_then(<[_]>::first);
    let candidates = match word.map(AsRef::<str>::as_ref) {
        Some("NODE") => ArgValueCandidates::new(nodes),
        Some("NODE|CONTAINER") => {
            ArgValueCandidates::new(|| nodes().into_iter().chain(containers()).collect())
        }
        Some("PID|CONTAINER") => ArgValueCandidates::new(containers),
        Some("NETWORK") => ArgValueCandidates::new(networks),
        Some("IMAGE") => ArgValueCandidates::new(|| names(Driver::image_names)),
        Some("DUMP") => ArgValueCandidates::new(dumps),
        Some("RELEASE") => ArgValueCandidates::new(releases),
        _ => return argument,
    };
    argument.add(candidates)
}

/// Names that the module lists; none without the right to ask it.
fn names(list: fn(&Driver) -> Result<Vec<abi::Name>, CallError>) -> Vec<CompletionCandidate> {
    let listed = Driver::open().ok().and_then(|driver| list(&driver).ok());
    let names = listed
        .iter()
        .flatten()
        .filter_map(|name| name.to_str().ok());
    names.map(CompletionCandidate::new).collect()
}

/// Nodes, also those that were not started yet.
fn nodes() -> Vec<CompletionCandidate> {
    let created = created_names(&Root::default()).into_iter();
    let created = created.map(|name| CompletionCandidate::new(name.to_string()));
    names(Driver::node_names)
        .into_iter()
        .chain(created)
        .collect()
}

fn networks() -> Vec<CompletionCandidate> {
    let names = network_names(&Root::default()).into_iter();
    names
        .map(|name| CompletionCandidate::new(name.to_string()))
        .collect()
}

fn containers() -> Vec<CompletionCandidate> {
    let names = insula_exec::container::names(&Root::default()).into_iter();
    names.map(CompletionCandidate::new).collect()
}

fn dumps() -> Vec<CompletionCandidate> {
    let dumps = Store::new(&Root::default()).list().unwrap_or_default();
    let names = dumps.into_iter().map(|dump| dump.name);
    names.map(CompletionCandidate::new).collect()
}

fn releases() -> Vec<CompletionCandidate> {
    let releases = installed_releases(&Root::default()).into_iter();
    releases.map(CompletionCandidate::new).collect()
}

#[cfg(test)]
mod tests {
    use super::super::cli::Cli;
    use super::*;
    use clap::CommandFactory;

    /// Candidates for the last of `words`.
    fn offered(words: &[&str]) -> Vec<String> {
        let words = std::iter::once(&"insula").chain(words);
        let words: Vec<_> = words.map(OsString::from).collect();
        let last = words.len() - 1;
        let mut command = completable(Cli::command(), &words);
        let found = clap_complete::engine::complete(&mut command, words, last, None);
        let values = found.unwrap().into_iter();
        values
            .map(|one| one.get_value().to_string_lossy().into_owned())
            .collect()
    }

    #[test]
    fn commands_options_and_values_are_offered() {
        assert_eq!(offered(&["mac"]), ["machine"]);
        assert_eq!(offered(&["machine", "re"]), ["reserve", "release"]);
        assert_eq!(offered(&["run", "--cpu-"]), ["--cpu-list"]);
        assert_eq!(
            offered(&["image", "add", "--layout", "d"]),
            ["decompressed"]
        );
    }

    #[test]
    fn hidden_commands_are_not_offered() {
        assert!(!offered(&[""]).contains(&"man".to_owned()));
    }

    /// Every argument that names a node or an image has completion candidates.
    #[test]
    fn names_are_completed() {
        fn check(command: &Command) {
            for argument in command.get_arguments() {
                let is_name = ["names", "image"].contains(&argument.get_id().as_str());
                let known = argument.get::<ArgValueCandidates>().is_some();
                let (command, argument) = (command.get_name(), argument.get_id());
                assert!(known || !is_name, "{command}: {argument}");
            }
            command.get_subcommands().for_each(check);
        }
        check(&completable(Cli::command(), &[]));
    }

    #[test]
    fn the_operand_of_run_is_an_image_unless_an_option_names_it() {
        let operand = |words: &[&str]| {
            let words: Vec<_> = words.iter().map(OsString::from).collect();
            let command = completable(Cli::command(), &words);
            let run = command.find_subcommand("run").expect("is there");
            let first = run.get_positionals().find(|one| one.get_index() == Some(1));
            let first = first.expect("has operands");
            (
                first.get_id().to_string(),
                first.get::<ArgValueCandidates>().is_some(),
            )
        };
        assert_eq!(operand(&["run", "-d"]), ("operand".to_owned(), true));
        assert_eq!(
            operand(&["run", "--image", "deb"]),
            ("program".to_owned(), false)
        );
    }
}
