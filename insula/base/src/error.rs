//! The one shape of an error that a user may see.
//!
//! | part | says | example |
//! |---|---|---|
//! | what | what failed, and for which object by name | `the image 'web' could not be added` |
//! | source | why, in the words of the layer below; follows after a colon | `allocating memory: it is in use` |
//! | left alone | the state in which that leaves everything else | `nothing was kept` |
//! | hint | what the user can do now; on a line of its own | ``free some: `insula machine info` shows what nodes use`` |
//! | option | which option or key it is about: an error in a file is shown there | `cpu_list` |
//!
//! How to word them: a part begins with a small letter and ends without a full stop. *What* is a
//! whole sentence about the user's object, not about a function or a file of ours. *Left alone* is
//! said by every operation that could have changed something, also if it changed nothing: it is
//! what decides whether the user has to clean up. A *hint* is an imperative, with commands in
//! backquotes that can be pasted; if there is nothing to do there is no hint.
//!
//! A *source* is a small type of a lower layer, such as [`std::io::Error`] or the module's refusal
//! of a call. It is a fragment: it knows neither the object nor the hint, and is never shown alone.
//! An [`Error`] is not the source of another one, but is passed on by `?`, if need be with
//! [`context`](Error::context). Numbers of system errors are left out: their text says the same.
//!
//! A function builds its errors by short functions beside the code that fails. There is no type of
//! error per function: to show an error, its parts are enough. What some caller must tell apart
//! has a [`Kind`].

use std::error::Error as StdError;
use std::fmt;

use crate::error_text::plain;

/// Any cause of an error.
pub type Source = Box<dyn StdError + Send + Sync>;

/// An error: what failed, what was left alone, and what to do.
#[derive(Debug, Default)]
pub struct Error {
    /// What a caller may do other than to show it.
    pub kind: Kind,
    /// What failed, without the source.
    pub what: String,
    /// The state in which that leaves everything else; empty if there is nothing to say.
    pub left_alone: &'static str,
    /// What the user can do; empty if nothing.
    pub hint: String,
    /// The option that it is about, as a key of files: `cpu_list`; empty if it is about none.
    pub option: &'static str,
    source: Option<Source>,
}

/// What callers do not only show, but act upon. A kind is added with the code that needs it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// None of the others.
    #[default]
    Other,
    /// The module is not loaded.
    NoModule,
    /// The loaded module speaks another revision of the interface: this one, if it tells.
    OtherRevision(Option<u32>),
    /// This user lacks the privilege.
    NoPrivilege,
    /// There is no image of that name.
    NoImage,
    /// An image's kernel is missing or cannot be started.
    Kernel,
    /// An image's initrd cannot be read.
    Initrd,
    /// What it needs is in use by others, or is missing for a moment: a later attempt may succeed.
    Unavailable,
    /// There is no node of that name.
    NoNode,
    /// The node does not run.
    NotRunning,
    /// The node is not to be started again: its user has stopped or removed it.
    Retired,
    /// The program to be run does not exist.
    NoProgram,
    /// The program to be run may not be executed.
    NotExecutable,
    /// The command's own output cannot be written.
    Output,
}

impl Error {
    /// An error that callers only show.
    #[must_use]
    pub fn new(what: impl Into<String>) -> Self {
        Self::of(Kind::Other, what)
    }

    /// An error that some caller tells from others.
    #[must_use]
    pub fn of(kind: Kind, what: impl Into<String>) -> Self {
        Self {
            kind,
            what: what.into(),
            ..Self::default()
        }
    }

    /// Adds why it failed.
    #[must_use]
    pub fn because(self, source: impl Into<Source>) -> Self {
        Self {
            source: Some(source.into()),
            ..self
        }
    }

    /// Adds that nothing was changed at all.
    #[must_use]
    pub fn untouched(self) -> Self {
        self.leaving("nothing was touched")
    }

    /// Adds that the object that it is about is the same as before.
    #[must_use]
    pub fn unchanged(self) -> Self {
        self.leaving("it was left as it is")
    }

    /// Adds that what was begun is gone again.
    #[must_use]
    pub fn nothing_kept(self) -> Self {
        self.leaving("nothing was kept")
    }

    /// Adds the state in which everything else is left.
    #[must_use]
    pub fn leaving(self, left_alone: &'static str) -> Self {
        Self { left_alone, ..self }
    }

    /// Adds what the user can do.
    #[must_use]
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self {
            hint: hint.into(),
            ..self
        }
    }

    /// Adds the option that it is about.
    #[must_use]
    pub fn about(self, option: &'static str) -> Self {
        Self { option, ..self }
    }

    /// Changes what a caller may do.
    #[must_use]
    pub fn with_kind(self, kind: Kind) -> Self {
        Self { kind, ..self }
    }

    /// Says first what was being done when it failed.
    #[must_use]
    pub fn context(self, doing: impl fmt::Display) -> Self {
        Self {
            what: format!("{doing}: {}", self.what),
            ..self
        }
    }

    /// What failed, why, and what was left alone: all but the hint.
    #[must_use]
    pub fn message(&self) -> String {
        match self.left_alone {
            "" => self.failure(),
            left_alone => format!("{}; {left_alone}", self.failure()),
        }
    }

    /// What failed, and why.
    #[must_use]
    pub fn failure(&self) -> String {
        match &self.source {
            Some(source) => format!("{}: {}", self.what, plain(&source.to_string())),
            None => self.what.clone(),
        }
    }

    /// The cause of that type, if there is one.
    #[must_use]
    pub fn cause<T: StdError + 'static>(&self) -> Option<&T> {
        let mut next = self.source();
        while let Some(cause) = next {
            match cause.downcast_ref() {
                Some(found) => return Some(found),
                None => next = cause.source(),
            }
        }
        None
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(self.source.as_deref()?)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message())?;
        match self.hint.as_str() {
            "" => Ok(()),
            hint => write!(f, "\n{hint}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn refused() -> Error {
        Error::new("'/a' cannot be read").because(io::Error::from_raw_os_error(2))
    }

    #[test]
    fn only_the_parts_that_it_has_are_shown() {
        assert_eq!(Error::new("no").to_string(), "no");
        let text = "'/a' cannot be read: No such file or directory";
        assert_eq!(refused().to_string(), text);
        let whole = refused().untouched().hint("give another").to_string();
        assert_eq!(whole, format!("{text}; nothing was touched\ngive another"));
    }

    #[test]
    fn context_comes_first() {
        let error = refused().leaving("it runs on").context("the image 'web'");
        let text = "the image 'web': '/a' cannot be read: No such file or directory; it runs on";
        assert_eq!(error.to_string(), text);
    }

    #[test]
    fn a_cause_is_found_by_its_type() {
        let error = refused();
        let cause = error.cause::<io::Error>();
        assert_eq!(cause.and_then(io::Error::raw_os_error), Some(2));
        assert!(error.cause::<fmt::Error>().is_none());
        assert!(Error::new("no").cause::<io::Error>().is_none());
    }
}
