//! Scripts: files whose first line names their interpreter.
//!
//! Source: execve(2) of Linux, and its fs/binfmt_script.c for truncation.

use alloc::vec::Vec;

use crate::model::errno::Errno;
use crate::model::initial_stack::Arguments;

/// Maximum length of the first line.
const LINE_MAX: usize = 255;

/// Interpreter and optional argument of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interpreter {
    /// Path of the interpreter.
    pub path: Vec<u8>,
    /// The rest of the line.
    pub argument: Option<Vec<u8>>,
}

impl Interpreter {
    /// Parses the head of a file; `None` if it is not a script, or its line may be truncated.
    #[must_use]
    pub fn read(head: &[u8]) -> Option<Self> {
        let rest = head.strip_prefix(b"#!")?;
        let seen = &rest[..rest.len().min(LINE_MAX - 2)];
        let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
        let end = seen.iter().position(|&byte| byte == b'\n' || byte == 0);
        let line = match end {
            Some(end) => &seen[..end],
            // A path that may be truncated is not used.
            None => {
                let path = seen.trim_ascii_start();
                (rest.len() == seen.len() || path.iter().any(is_blank)).then_some(seen)?
            }
        };
        let line = trim(line, is_blank);
        let path_end = line.iter().position(is_blank);
        let (path, rest) = line.split_at(path_end.unwrap_or(line.len()));
        let argument = trim(rest, is_blank);
        (!path.is_empty()).then(|| Self {
            path: path.to_vec(),
            argument: (!argument.is_empty()).then(|| argument.to_vec()),
        })
    }

    /// Adds the interpreter and its argument in front of the script's arguments, whose first
    /// becomes the script's path.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub fn apply(self, arguments: &mut Arguments) -> Result<(), Errno> {
        let script = core::mem::replace(&mut arguments.path, self.path);
        let own = [arguments.path.as_slice()].into_iter();
        let own = own.chain(self.argument.as_deref()).chain([&script[..]]);
        arguments.arguments.replace_first(own)
    }
}

fn trim(mut line: &[u8], is_blank: impl Fn(&u8) -> bool) -> &[u8] {
    while let Some((first, rest)) = line.split_first()
        && is_blank(first)
    {
        line = rest;
    }
    while let Some((last, rest)) = line.split_last()
        && is_blank(last)
    {
        line = rest;
    }
    line
}

#[cfg(test)]
mod tests {
    use super::super::initial_stack::Strings;
    use super::*;

    fn read(head: &str) -> Option<(std::string::String, Option<std::string::String>)> {
        let text = |bytes: Vec<u8>| std::string::String::from_utf8(bytes).unwrap();
        let found = Interpreter::read(head.as_bytes())?;
        Some((text(found.path), found.argument.map(text)))
    }

    #[test]
    fn lines_are_parsed_as_on_linux() {
        let only = |path: &str| Some((path.into(), None));
        assert_eq!(read("#!/bin/sh\necho"), only("/bin/sh"));
        assert_eq!(read("#! \t/bin/sh \t\n"), only("/bin/sh"));
        let both = Some(("/usr/bin/env".into(), Some("python3 -x".into())));
        assert_eq!(read("#!/usr/bin/env \tpython3 -x \n"), both);
        assert_eq!(read("#!/bin/sh"), only("/bin/sh"));
        for none in ["", "#", "#!", "#!\n", "#! \n/bin/sh", "\x7fELF"] {
            assert_eq!(read(none), None, "{none:?}");
        }
        let long = "x".repeat(300);
        assert_eq!(read(&std::format!("#!/{long}\n")), None);
        let cut = read(&std::format!("#!/bin/sh {long}\n")).unwrap();
        assert_eq!((cut.0.as_str(), cut.1.unwrap().len()), ("/bin/sh", 245));
    }

    fn strings(all: &[&str]) -> Strings {
        let mut strings = Strings::default();
        for one in all {
            strings.push(one.as_bytes()).unwrap();
        }
        strings
    }

    #[test]
    fn the_script_becomes_an_argument() {
        let mut arguments = Arguments {
            path: b"./script".to_vec(),
            arguments: strings(&["name", "one"]),
            environment: Strings::default(),
            mounts: Strings::default(),
        };
        let found = Interpreter::read(b"#!/bin/sh -e\n").unwrap();
        found.apply(&mut arguments).unwrap();
        assert_eq!(arguments.path, b"/bin/sh");
        let words = strings(&["/bin/sh", "-e", "./script", "one"]);
        assert_eq!(arguments.arguments, words);
    }
}
