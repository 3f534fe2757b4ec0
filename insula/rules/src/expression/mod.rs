//! Expressions over a kernel's objects, in the notation of C: `real_parent.pid == 0 && comm != "init"`.
//!
//! | | |
//! |---|---|
//! | `pid`, `files.count.counter` | a member of the object that is looked at; pointers on the way are followed, by `.` as by `->` |
//! | `sysctl_sched_features:int`, `init_task:task_struct.pid` | a global variable, with its type |
//! | `comm[0]` | an element of an array |
//! | `module_state::MODULE_STATE_LIVE` | a name in an enumeration |
//! | `17`, `0x11`, `"text"` | numbers of 64 bits without sign, texts |
//! | `! ~ ( )`, `& \| ^ << >> + -`, `== != < <= > >=`, `&&`, `\|\|` | operators, those that bind closest first; unlike in C, `a & b == c` compares `a & b` |
//!
//! Here they are only parsed. What they name is looked up in the types of the kernel that is watched.

mod lexer;
mod parser;

pub use parser::parse;

use thiserror::Error;

/// Longest text of an expression, in bytes.
pub const LENGTH_MAX: usize = 1024;

/// An expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expression {
    /// A number.
    Number(u64),
    /// A text.
    Text(String),
    /// A name in an enumeration.
    Enumerator {
        /// The enumeration.
        enumeration: String,
        /// The name.
        name: String,
    },
    /// What is at a place.
    Place(Place),
    /// An operation on one value.
    Unary(Unary, Box<Expression>),
    /// An operation on two values.
    Binary(Binary, Box<Expression>, Box<Expression>),
}

/// A place in the kernel's memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Where it starts.
    pub start: Start,
    /// The way from there.
    pub steps: Vec<Step>,
}

/// Where a place starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Start {
    /// At the object that is looked at.
    Object,
    /// At a global variable.
    Global {
        /// Its name.
        symbol: String,
        /// Its type.
        of: String,
    },
}

/// A step from a place to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// To a member of a structure or union.
    Member(String),
    /// To an element of an array.
    Element(u64),
}

/// An operation on one value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unary {
    /// `!`: 1 if it is 0, else 0.
    Not,
    /// `~`: all bits are other ones.
    Complement,
}

/// An operation on two values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Binary {
    /// `&&`.
    And,
    /// `||`.
    Or,
    /// `==`.
    Equal,
    /// `!=`.
    Unequal,
    /// `<`.
    Less,
    /// `<=`.
    LessOrEqual,
    /// `>`.
    Greater,
    /// `>=`.
    GreaterOrEqual,
    /// `&`.
    BitAnd,
    /// `|`.
    BitOr,
    /// `^`.
    BitXor,
    /// `<<`.
    ShiftLeft,
    /// `>>`.
    ShiftRight,
    /// `+`.
    Add,
    /// `-`.
    Subtract,
}

/// Why a text is no expression.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("at character {}: {what}", at + 1)]
pub struct SyntaxError {
    /// Index of the character.
    pub at: usize,
    /// What is wrong there.
    pub what: String,
}

impl SyntaxError {
    fn new(at: usize, what: impl Into<String>) -> Self {
        Self {
            at,
            what: what.into(),
        }
    }
}
