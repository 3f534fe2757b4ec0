//! The command line of an OCI runtime, as crun and runc have it.
//!
//! Only what this runtime needs of it is understood; everything is passed on to the ordinary runtime,
//! which refuses what it does not know.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// Options before the verb that have a value.
const GLOBAL: &[&str] = &[
    "--cgroup-manager",
    "--criu",
    "--log",
    "--log-format",
    "--log-level",
    "--root",
    "--rootless",
];
/// Those of `create` and `run`.
const CREATE: &[&str] = &[
    "--bundle",
    "-b",
    "--config",
    "-f",
    "--console-socket",
    "--pid-file",
    "--preserve-fds",
];
/// Those of `exec`.
const EXEC: &[&str] = &[
    "--additional-gids",
    "-g",
    "--apparmor",
    "--cap",
    "-c",
    "--cgroup",
    "--console-socket",
    "--cwd",
    "--env",
    "-e",
    "--pid-file",
    "--preserve-fds",
    "--process",
    "-p",
    "--process-label",
    "--user",
    "-u",
];

/// Those of `update`.
const UPDATE: &[&str] = &[
    "--blkio-weight",
    "--cpu-burst",
    "--cpu-period",
    "--cpu-quota",
    "--cpu-rt-period",
    "--cpu-rt-runtime",
    "--cpu-share",
    "--cpuset-cpus",
    "--cpuset-mems",
    "--kernel-memory",
    "--kernel-memory-tcp",
    "--memory",
    "--memory-reservation",
    "--memory-swap",
    "--pids-limit",
    "--resources",
    "-r",
];

/// A command line: options, a verb, and options and operands of that.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Arguments {
    global: Vec<Word>,
    /// What is to be done; empty if only options are given.
    pub(super) verb: String,
    rest: Vec<Word>,
}

/// One part of a command line.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Word {
    /// An option, as it is written, and its value.
    Option(OsString, Option<OsString>),
    /// An operand, or what follows one of `exec`.
    Operand(OsString),
}

impl Arguments {
    /// Reads a command line, without the program's name. None is refused.
    pub(super) fn parse(words: impl IntoIterator<Item = OsString>) -> Self {
        let mut words = words.into_iter();
        let mut global = Vec::new();
        let mut verb = OsString::new();
        while let Some(word) = words.next() {
            if !is_option(&word) {
                verb = word;
                break;
            }
            global.push(option(word, GLOBAL, &mut words));
        }
        let verb = verb.to_string_lossy().into_owned();
        let mut rest = Vec::new();
        while let Some(word) = words.next() {
            if is_option(&word) {
                rest.push(option(word, with_values(&verb), &mut words));
                continue;
            }
            let is_exec = verb == "exec" && word != "--";
            rest.push(Word::Operand(word));
            // What follows the container's name is a program's.
            if is_exec {
                rest.extend(words.by_ref().map(Word::Operand));
            }
        }
        Self { global, verb, rest }
    }

    /// The value of the last option before the verb of that name.
    pub(super) fn global(&self, name: &str) -> Option<&OsStr> {
        last(&self.global, &[name])
    }

    /// The value of the verb's last option of one of these names.
    pub(super) fn value(&self, names: &[&str]) -> Option<&OsStr> {
        last(&self.rest, names)
    }

    /// The values of all of the verb's options of these names.
    pub(super) fn values(&self, names: &[&str]) -> Vec<&OsStr> {
        let of_option = |word| match word {
            &Word::Option(ref name, Some(ref value)) if is_one_of(name, names) => {
                Some(value.as_os_str())
            }
            _ => None,
        };
        self.rest.iter().filter_map(of_option).collect()
    }

    /// Whether the verb has an option of one of these names.
    pub(super) fn has(&self, names: &[&str]) -> bool {
        let is_it = |word: &Word| matches!(word, Word::Option(name, _) if is_one_of(name, names));
        self.rest.iter().any(is_it)
    }

    /// The verb's operands.
    pub(super) fn operands(&self) -> impl Iterator<Item = &OsStr> {
        self.rest.iter().filter_map(|word| match word {
            Word::Operand(text) if text != "--" => Some(text.as_os_str()),
            _ => None,
        })
    }

    /// The container's id, if there is one.
    pub(super) fn id(&self) -> Option<String> {
        let id = self.operands().next()?;
        Some(id.to_string_lossy().into_owned())
    }

    /// The bundle: a folder, the present one if none is given.
    pub(super) fn bundle(&self) -> PathBuf {
        self.value(&["--bundle", "-b"])
            .map_or_else(|| ".".into(), PathBuf::from)
    }

    /// The words for the ordinary runtime.
    pub(super) fn words(&self) -> Vec<OsString> {
        let has_verb = !self.verb.is_empty() || !self.rest.is_empty();
        let verb = has_verb.then(|| OsString::from(&self.verb));
        let global = self.global.iter().flat_map(Word::words);
        let rest = self.rest.iter().flat_map(Word::words);
        global.chain(verb).chain(rest).collect()
    }

    /// The same, with this option of the verb in place of others.
    pub(super) fn with_option(&self, name: &str, value: &OsStr, replaced: &[&str]) -> Self {
        let keeps = |word: &&Word| match word {
            Word::Option(name, _) => !is_one_of(name, replaced),
            Word::Operand(_) => true,
        };
        let own = Word::Option(name.into(), Some(value.to_owned()));
        let kept = self.rest.iter().filter(keeps).cloned();
        Self {
            rest: [own].into_iter().chain(kept).collect(),
            ..self.clone()
        }
    }

    /// The same of `exec`, with these words before the program's.
    pub(super) fn with_program(&self, words: &[String]) -> Self {
        let is_operand = |word: &Word| matches!(word, Word::Operand(text) if text != "--");
        let program = self
            .rest
            .iter()
            .position(is_operand)
            .map_or(self.rest.len(), |id| id + 1);
        let (before, after) = self.rest.split_at(program);
        let words = words.iter().map(|word| Word::Operand(word.into()));
        Self {
            rest: before
                .iter()
                .cloned()
                .chain(words)
                .chain(after.iter().cloned())
                .collect(),
            ..self.clone()
        }
    }

    /// Another verb about a container, with the same options before it.
    pub(super) fn asking(&self, verb: &str, id: &str) -> Self {
        Self {
            global: self.global.clone(),
            verb: verb.to_owned(),
            rest: vec![Word::Operand(id.into())],
        }
    }

    /// The same, with the first operand only.
    pub(super) fn with_id_only(&self) -> Self {
        let mut operands = 0;
        let mut keeps = |word: &&Word| match word {
            Word::Option(..) => true,
            Word::Operand(text) => {
                operands += usize::from(text != "--");
                text != "--" && operands == 1
            }
        };
        Self {
            rest: self
                .rest
                .iter()
                .filter(|word| keeps(word))
                .cloned()
                .collect(),
            ..self.clone()
        }
    }
}

impl Word {
    /// As it is passed on.
    fn words(&self) -> Vec<OsString> {
        match self {
            Self::Option(name, None) | Self::Operand(name) => vec![name.clone()],
            Self::Option(name, Some(value)) if name.as_bytes().starts_with(b"--") => {
                let mut word = name.clone();
                word.push("=");
                word.push(value);
                vec![word]
            }
            Self::Option(name, Some(value)) => vec![name.clone(), value.clone()],
        }
    }
}

/// The verb's options that have a value.
fn with_values(verb: &str) -> &'static [&'static str] {
    match verb {
        "create" | "run" => CREATE,
        "exec" => EXEC,
        "update" => UPDATE,
        _ => &[],
    }
}

fn is_option(word: &OsStr) -> bool {
    word.len() > 1 && word.as_bytes()[0] == b'-' && word != "--"
}

/// An option and its value: after an equals sign, in the same word, or in the next one.
fn option(word: OsString, with_values: &[&str], next: &mut impl Iterator<Item = OsString>) -> Word {
    let bytes = word.as_bytes();
    let is_long = bytes.starts_with(b"--");
    if is_long && let Some(middle) = bytes.iter().position(|&byte| byte == b'=') {
        let (name, value) = (&bytes[..middle], &bytes[middle + 1..]);
        return Word::Option(text(name), Some(text(value)));
    }
    if is_one_of(&word, with_values) {
        let value = next.next();
        return Word::Option(word, value);
    }
    if !is_long && bytes.len() > 2 && is_one_of(&text(&bytes[..2]), with_values) {
        return Word::Option(text(&bytes[..2]), Some(text(&bytes[2..])));
    }
    Word::Option(word, None)
}

fn text(bytes: &[u8]) -> OsString {
    OsString::from_vec(bytes.to_vec())
}

fn is_one_of(name: &OsStr, names: &[&str]) -> bool {
    names.iter().any(|one| name == *one)
}

fn last<'a>(words: &'a [Word], names: &[&str]) -> Option<&'a OsStr> {
    words.iter().rev().find_map(|word| match word {
        Word::Option(name, Some(value)) if is_one_of(name, names) => Some(value.as_os_str()),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Arguments {
        Arguments::parse(text.split_whitespace().map(OsString::from))
    }

    #[test]
    fn a_program_gets_words_before_it() {
        let words = ["proxy".to_owned(), "3".to_owned()];
        let found = parse("exec -t web sh -c true").with_program(&words);
        assert_eq!(found, parse("exec -t web proxy 3 sh -c true"));
    }

    #[test]
    fn what_conmon_passes() {
        let text = "--root=/run/crun --log-format=json --log /b/oci-log create --bundle /b \
                    --pid-file /b/pidfile --console-socket /c 0123";
        let found = parse(text);
        assert_eq!(found.verb, "create");
        assert_eq!(found.bundle(), PathBuf::from("/b"));
        assert_eq!(found.id().as_deref(), Some("0123"));
        assert_eq!(found.global("--log").unwrap(), "/b/oci-log");
        assert_eq!(found.global("--log-format").unwrap(), "json");
        assert_eq!(found.global("--criu"), None);
    }

    #[test]
    fn options_have_three_forms() {
        for text in [
            "create -b /b c",
            "create -b/b c",
            "create --bundle=/b c",
            "run c -b /b",
        ] {
            let found = parse(text);
            assert_eq!(found.bundle(), PathBuf::from("/b"), "{text}");
            assert_eq!(found.id().as_deref(), Some("c"), "{text}");
        }
        // Of this verb it has no value.
        assert_eq!(parse("delete -f c").id().as_deref(), Some("c"));
    }

    #[test]
    fn a_program_keeps_its_options() {
        let found = parse("exec -t --cwd /x -e A=1 -e B=2 c ls -p --tty");
        let operands: Vec<_> = found.operands().collect();
        assert_eq!(operands, ["c", "ls", "-p", "--tty"]);
        assert!(found.has(&["-t"]) && !found.has(&["--tty"]));
        assert_eq!(found.values(&["-e", "--env"]), ["A=1", "B=2"]);
        let passed = found.with_id_only();
        let passed = passed.with_option("--process", OsStr::new("/p"), &["-t", "-e", "--cwd"]);
        assert_eq!(passed.words(), ["exec", "--process=/p", "c"]);
    }

    #[test]
    fn nothing_but_options() {
        let found = parse("--version");
        assert_eq!((found.verb.as_str(), found.id()), ("", None));
        assert_eq!(found.words(), ["--version"]);
    }

    proptest! {
        #[test]
        fn any_words_are_passed_on(words in prop::collection::vec("(-{0,2}[a-z=]{0,8}|create|exec)", 0..8)) {
            let words: Vec<_> = words.into_iter().map(OsString::from).collect();
            let found = Arguments::parse(words.clone());
            // Once more: then each has the one form that is passed on.
            let passed = found.words();
            prop_assert_eq!(Arguments::parse(passed.clone()).words(), passed);
            let _ = (found.id(), found.bundle(), found.with_id_only());
        }
    }
}
