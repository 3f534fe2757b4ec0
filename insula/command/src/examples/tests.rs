//! Examples are accepted, and there is one for each command.

use super::*;
use clap::{CommandFactory, Parser};

use crate::cli::{Cli, operands};

/// Every example is accepted.
#[test]
fn examples_are_well_formed() {
    let lines = ALL.iter().flat_map(|(_, examples)| *examples);
    for line in lines.flat_map(|example| example.lines) {
        let (_, words) = line.split_once("insula ").unwrap();
        let (words, _) = words.split_once([')', '>']).unwrap_or((words, ""));
        let words = ["insula"].into_iter().chain(words.split_whitespace());
        let words = operands::named(Cli::command(), words.map(Into::into).collect());
        Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{line}: {error}"));
    }
}

/// Every page has an example.
#[test]
fn each_command_has_examples() {
    fn check(command: &clap::Command) {
        let page = command.get_display_name().unwrap_or(command.get_name());
        assert!(!of(page).is_empty(), "{page} has no example: add one above");
        let children = command.get_subcommands();
        children
            .filter(|child| !child.is_hide_set())
            .for_each(check);
    }
    let mut cli = Cli::command().disable_help_subcommand(true);
    cli.build();
    check(&cli);
}

/// Every example belongs to a command.
#[test]
fn examples_belong_to_commands() {
    let mut cli = Cli::command();
    cli.build();
    for (page, _) in ALL {
        let mut command = &cli;
        for word in page.split('-').skip(1) {
            command = command
                .find_subcommand(word)
                .unwrap_or_else(|| panic!("{page} belongs to no command"));
        }
    }
}
