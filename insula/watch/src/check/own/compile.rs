//! Expressions for a certain kernel: what they name is looked up in its symbols and types.

use super::Label;
use crate::target::Kernel;
use insula_rules::expression::{Binary, Expression, Place, Start, Step, Unary};
use insula_rules::{CheckError, Walk};
use kimage::running::RunningError;
use kimage::{Btf, LookupError, Type};
use thiserror::Error;

/// Types of C whose names are not in the kernel's type information, and those that are the same. As all
/// numbers here they have no sign.
const SAME_TYPES: [(&str, &str); 4] = [
    ("char", "u8"),
    ("short", "u16"),
    ("int", "u32"),
    ("long", "u64"),
];
/// Elements of an array whose length is not known that can be named.
const ELEMENTS_MAX: u64 = 1 << 16;
/// The type of what links a list, and of its head.
const LINK: &str = "list_head";
/// A name is proposed if at most one of so many of its characters has to be changed.
const SIMILAR: usize = 3;

/// Why a check does not fit a kernel.
#[derive(Debug, Error)]
pub(crate) enum FitError {
    /// It is not valid.
    #[error(transparent)]
    Invalid(CheckError),
    /// The kernel has no type information.
    #[error(transparent)]
    Kernel(#[from] RunningError),
    /// There is no such variable.
    #[error("the kernel has no variable {name}{hint}", hint = hint(.similar))]
    Symbol {
        /// Its name.
        name: String,
        /// One like it.
        similar: Option<String>,
    },
    /// There is no such type.
    #[error("the kernel has no type {name}{hint}", hint = hint(.similar))]
    Type {
        /// Its name.
        name: String,
        /// One like it.
        similar: Option<String>,
    },
    /// There is no such member.
    #[error("the kernel's type {of} has no member {member}{hint}", hint = hint(.similar))]
    Member {
        /// The type.
        of: String,
        /// The member.
        member: String,
        /// One like it.
        similar: Option<String>,
    },
    /// A member does not link a list.
    #[error("the kernel's member {of}.{member} links no list: it is no struct {LINK}")]
    Link {
        /// The type.
        of: String,
        /// The member.
        member: String,
    },
    /// There is no such name in an enumeration.
    #[error(transparent)]
    Enumerator(LookupError),
    /// A member is named, though no objects are looked at.
    #[error(
        "{0} is a member of nothing: say what is looked at (in = \"tasks\"), or use VARIABLE:TYPE"
    )]
    NoObject(String),
    /// It has no such element.
    #[error("there is no element {0}")]
    Element(u64),
    /// It is neither number nor text.
    #[error("{0} is neither a number nor a text")]
    NoValue(String),
    /// A text is used as a number.
    #[error("a text can only be compared with another one, by == or !=")]
    Text,
}

fn hint(similar: &Option<String>) -> String {
    let hint = similar
        .as_ref()
        .map(|name| format!("; did you mean {name}?"));
    hint.unwrap_or_default()
}

/// An expression with a number as its value; absent if a pointer on the way is null.
#[derive(Debug)]
pub(super) enum Number {
    Constant(u64),
    Place(Located),
    Unary(Unary, Box<Number>),
    Binary(Binary, Box<Number>, Box<Number>),
    /// Whether two texts are the same; or whether they are not.
    Same(Text, Text, bool),
}

/// An expression with a text as its value.
#[derive(Debug)]
pub(super) enum Text {
    Constant(String),
    /// An array of characters.
    Array(Located),
    /// A pointer to characters.
    Pointer(Located),
}

/// A place, whose start is found.
#[derive(Debug)]
pub(super) struct Located {
    /// A global variable and its type; the object that is looked at by default.
    pub(super) global: Option<(u64, String)>,
    pub(super) steps: Vec<Step>,
}

/// What is at a place.
enum Content {
    Number,
    Array,
    /// A number, or a text.
    Pointer,
}

/// Compiles an expression over objects of a type.
pub(super) fn compile(
    kernel: &Kernel<'_>,
    of: Option<Type>,
    expression: &Expression,
) -> Result<Number, FitError> {
    let inner = |expression: &Expression| compile(kernel, of, expression).map(Box::new);
    Ok(match expression {
        Expression::Number(number) => Number::Constant(*number),
        Expression::Text(_) => return Err(FitError::Text),
        Expression::Enumerator { enumeration, name } => {
            let value = kernel.btf()?.enumerator(enumeration, name);
            Number::Constant(value.map_err(FitError::Enumerator)?.into())
        }
        Expression::Place(place) => match locate(kernel, of, place)? {
            (_, Content::Array) => return Err(FitError::Text),
            (located, _) => Number::Place(located),
        },
        Expression::Unary(operator, of) => Number::Unary(*operator, inner(of)?),
        Expression::Binary(operator, left, right) => {
            match same(kernel, of, *operator, left, right)? {
                Some(same) => same,
                None => Number::Binary(*operator, inner(left)?, inner(right)?),
            }
        }
    })
}

/// Compiles what names an object.
pub(super) fn label(
    kernel: &Kernel<'_>,
    of: Option<Type>,
    expression: &Expression,
) -> Result<Label, FitError> {
    match as_text(kernel, of, expression, true)? {
        Some(text) => Ok(Label::Text(text)),
        None => compile(kernel, of, expression).map(Label::Number),
    }
}

/// The type of the objects that are looked at, if any are.
pub(super) fn entry_type(walk: &Walk, kernel: &Kernel<'_>) -> Result<Option<Type>, FitError> {
    let btf = kernel.btf()?;
    let (name, member) = match walk {
        Walk::Globals => return Ok(None),
        Walk::Tasks => ("task_struct", "tasks"),
        Walk::Modules => ("module", "list"),
        Walk::List { head, of, member } => {
            symbol(kernel, head)?;
            (of.as_str(), member.as_str())
        }
    };
    let of = type_named(btf, name)?;
    let link = step(btf, of, &Step::Member(member.to_owned()))?;
    match btf.name_of(link) == LINK {
        true => Ok(Some(of)),
        false => Err(FitError::Link {
            of: name.to_owned(),
            member: member.to_owned(),
        }),
    }
}

/// A comparison of texts, if it is one.
fn same(
    kernel: &Kernel<'_>,
    of: Option<Type>,
    operator: Binary,
    left: &Expression,
    right: &Expression,
) -> Result<Option<Number>, FitError> {
    let is_equal = match operator {
        Binary::Equal => true,
        Binary::Unequal => false,
        _ => return Ok(None),
    };
    // A pointer is a text where it is compared with one.
    let is_text = |one| as_text(kernel, of, one, false).map(|text| text.is_some());
    if !is_text(left)? && !is_text(right)? {
        return Ok(None);
    }
    let text = |one| as_text(kernel, of, one, true)?.ok_or(FitError::Text);
    Ok(Some(Number::Same(text(left)?, text(right)?, is_equal)))
}

/// An expression as a text, if it is one; pointers to characters only if wanted.
fn as_text(
    kernel: &Kernel<'_>,
    of: Option<Type>,
    expression: &Expression,
    with_pointers: bool,
) -> Result<Option<Text>, FitError> {
    Ok(match expression {
        Expression::Text(text) => Some(Text::Constant(text.clone())),
        Expression::Place(place) => match locate(kernel, of, place)? {
            (located, Content::Array) => Some(Text::Array(located)),
            (located, Content::Pointer) if with_pointers => Some(Text::Pointer(located)),
            _ => None,
        },
        _ => None,
    })
}

/// Finds where a place starts, and checks each step from there.
fn locate(
    kernel: &Kernel<'_>,
    of: Option<Type>,
    place: &Place,
) -> Result<(Located, Content), FitError> {
    let btf = kernel.btf()?;
    let (global, mut of) = match (&place.start, of) {
        (Start::Object, Some(of)) => (None, of),
        (Start::Object, None) => return Err(FitError::NoObject(shown(place))),
        (Start::Global { symbol: name, of }, _) => {
            let same = SAME_TYPES.iter().find(|(name, _)| *name == of.as_str());
            let of = same.map_or(of.as_str(), |(_, same)| same);
            let start = (symbol(kernel, name)?, of.to_owned());
            (Some(start), type_named(btf, of)?)
        }
    };
    for one in &place.steps {
        of = step(btf, of, one)?;
    }
    let steps = place.steps.clone();
    let content = content(btf, of).ok_or_else(|| FitError::NoValue(shown(place)))?;
    Ok((Located { global, steps }, content))
}

fn content(btf: &Btf, of: Type) -> Option<Content> {
    let is_character = |of| btf.size_of_type(of) == Some(1);
    if let Some((element, _)) = btf.elements_of(of) {
        return is_character(element).then_some(Content::Array);
    }
    match btf.target_of(of) {
        Some(target) if is_character(target) => Some(Content::Pointer),
        _ => matches!(btf.size_of_type(of), Some(1..=8)).then_some(Content::Number),
    }
}

/// The type after a step, before which a pointer is followed.
fn step(btf: &Btf, of: Type, step: &Step) -> Result<Type, FitError> {
    match step {
        Step::Element(index) => {
            let (element, count) = btf.elements_of(of).ok_or(FitError::Element(*index))?;
            let count = match count {
                0 => ELEMENTS_MAX,
                count => count.into(),
            };
            match *index < count {
                true => Ok(element),
                false => Err(FitError::Element(*index)),
            }
        }
        Step::Member(name) => {
            let of = btf.target_of(of).unwrap_or(of);
            let found = btf.member_of(of, name).map(|(_, of)| of);
            found.map_err(|_| FitError::Member {
                of: btf.name_of(of),
                member: name.clone(),
                similar: similar(name, btf.member_names(of).iter().map(String::as_str)),
            })
        }
    }
}

fn symbol(kernel: &Kernel<'_>, name: &str) -> Result<u64, FitError> {
    let symbols = kernel.symbols();
    symbols.address(name).ok_or_else(|| FitError::Symbol {
        name: name.to_owned(),
        similar: similar(name, symbols.iter().map(|symbol| symbol.name)),
    })
}

fn type_named(btf: &Btf, name: &str) -> Result<Type, FitError> {
    btf.type_named(name).map_err(|_| FitError::Type {
        name: name.to_owned(),
        similar: similar(name, btf.type_names().iter().map(String::as_str)),
    })
}

/// The name that is most like one.
fn similar<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<String> {
    let rated = names.map(|one| (strsim::osa_distance(name, one), one));
    let close = rated.filter(|(distance, _)| distance * SIMILAR <= name.len());
    let best = close.min_by_key(|(distance, _)| *distance);
    best.map(|(_, name)| name.to_owned())
}

/// A place, as it is written.
fn shown(place: &Place) -> String {
    let mut text = match &place.start {
        Start::Object => String::new(),
        Start::Global { symbol, of } => format!("{symbol}:{of}."),
    };
    for step in &place.steps {
        match step {
            Step::Member(name) => text.push_str(&format!("{name}.")),
            Step::Element(index) => text = format!("{}[{index}].", text.trim_end_matches('.')),
        }
    }
    text.trim_end_matches('.').to_owned()
}
