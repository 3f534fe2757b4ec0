//! A node's image and program as podman has them, `insula run IMAGE PROGRAM...`, for `--image IMAGE -- PROGRAM...`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use clap::{Arg, Command};

/// Commands that have them.
const VERBS: [&str; 2] = ["run", "create"];
/// Options that say what a node starts from.
const SOURCES: [&str; 2] = ["--image", "--kernel"];

/// The words of a command line, with the options that its operands stand for in their place.
pub(crate) fn named(mut definition: Command, mut words: Vec<OsString>) -> Vec<OsString> {
    let verb = words.get(1).and_then(|verb| verb.to_str());
    let verb = verb.filter(|verb| VERBS.contains(verb));
    let Some(verb) = verb.and_then(|verb| definition.find_subcommand_mut(verb)) else {
        return words;
    };
    // Before it has no options.
    verb.build();
    let options = Options(verb.get_arguments().collect());
    let Some(first) = options.first_operand(&words) else {
        return words;
    };
    let mut operands = words.split_off(first).into_iter().peekable();
    if !words.iter().any(is_source) {
        words.push("--image".into());
        words.extend(operands.next());
    }
    operands.next_if(|word| word == "--");
    if operands.peek().is_some() {
        words.push("--".into());
        words.extend(operands);
    }
    words
}

/// A built definition that has the image as an operand, where the words of a command line leave room for it: what
/// is offered to complete it.
pub(crate) fn declared(mut definition: Command, words: &[OsString]) -> Command {
    if words.iter().any(is_source) {
        return definition;
    }
    for verb in VERBS {
        definition = definition.mut_subcommand(verb, |verb| {
            let image = Arg::new("operand").value_name("IMAGE");
            verb.mut_arg("program", |program| program.index(2))
                .arg(image.index(1).num_args(1))
        });
    }
    definition
}

fn is_source(word: &OsString) -> bool {
    let is = |option: &&str| {
        let rest = word.as_bytes().strip_prefix(option.as_bytes());
        rest.is_some_and(|rest| rest.is_empty() || rest[0] == b'=')
    };
    SOURCES.iter().any(is)
}

/// The options of a command.
struct Options<'a>(Vec<&'a Arg>);

impl Options<'_> {
    /// Where the first operand is, if there is one that no `--` precedes.
    fn first_operand(&self, words: &[OsString]) -> Option<usize> {
        // After the program's name and the verb.
        let mut at = 2;
        while let Some(word) = words.get(at).filter(|word| *word != "--") {
            if !is_option(word) {
                return Some(at);
            }
            let next = words.get(at + 1).is_some_and(|next| !is_option(next));
            at += match self.with_value_next(word) {
                Some(option) if has_optional_value(option) => 1 + usize::from(next),
                Some(_) => 2,
                None => 1,
            };
        }
        None
    }

    /// The option in this word, or the last of those there, whose value can only be the next word.
    fn with_value_next(&self, word: &OsStr) -> Option<&Arg> {
        let text = word.to_string_lossy();
        if let Some(long) = text.strip_prefix("--") {
            return self.with_value(|option| option.get_long() == Some(long));
        }
        let mut letters = text.chars().skip(1);
        let found =
            letters.find_map(|letter| self.with_value(|one| one.get_short() == Some(letter)));
        // What follows in the same word is the value.
        found.filter(|_| letters.next().is_none())
    }

    fn with_value(&self, is_it: impl Fn(&Arg) -> bool) -> Option<&Arg> {
        let mut with_value = self
            .0
            .iter()
            .filter(|option| option.get_action().takes_values());
        with_value.find(|option| is_it(option)).copied()
    }
}

/// Whether it can be without a value: then an option that follows it is none.
fn has_optional_value(option: &Arg) -> bool {
    option
        .get_num_args()
        .is_some_and(|range| range.min_values() == 0)
}

fn is_option(word: &OsStr) -> bool {
    word.len() > 1 && word.as_bytes()[0] == b'-'
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::cli::Cli;

    fn of(text: &str) -> String {
        let words = text.split(' ').map(OsString::from).collect();
        let named = named(Cli::command(), words);
        named.join(OsStr::new(" ")).into_string().unwrap()
    }

    #[test]
    fn operands_are_the_image_and_the_program() {
        for (given, named) in [
            ("run deb", "run --image deb"),
            ("run -d --name web deb", "run -d --name web --image deb"),
            ("run -it deb sh -c x", "run -it --image deb -- sh -c x"),
            ("run -itm 1G deb sh", "run -itm 1G --image deb -- sh"),
            ("run -m1G deb -- sh -c", "run -m1G --image deb -- sh -c"),
            (
                "run --name=web deb -- sh --",
                "run --name=web --image deb -- sh --",
            ),
            (
                "run --network -p 80:80 deb",
                "run --network -p 80:80 --image deb",
            ),
            ("run --network back deb", "run --network back --image deb"),
            ("create --cpus 2 deb", "create --cpus 2 --image deb"),
            ("run --image lwk ls -l", "run --image lwk -- ls -l"),
            ("run --kernel=k init", "run --kernel=k -- init"),
        ] {
            assert_eq!(of(&format!("insula {given}")), format!("insula {named}"));
        }
    }

    #[test]
    fn others_stay_as_they_are() {
        for line in [
            "insula",
            "insula run",
            "insula run --name",
            "insula run --image deb -- sh",
            "insula run --image deb --name web",
            "insula exec run deb",
        ] {
            assert_eq!(of(line), line);
        }
    }
}
