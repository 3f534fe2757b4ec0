//! Values of expressions. `None` stands for what is behind a null pointer: it compares to nothing.

use super::compile::{Located, Number, Text};
use crate::target::{Kernel, Place};
use insula_rules::expression::{Binary, Step, Unary};
use kimage::running::RunningError;

/// Longest text behind a pointer, in bytes.
const TEXT_MAX: u64 = 256;
/// Size of the smallest page: what follows may not be mapped.
const PAGE: u64 = 4096;

/// The value of an expression for an object.
pub(super) fn number(
    kernel: &Kernel<'_>,
    object: Option<&Place<'_, '_>>,
    of: &Number,
) -> Result<Option<u64>, RunningError> {
    Ok(match of {
        Number::Constant(number) => Some(*number),
        Number::Place(located) => match place(kernel, object, located)? {
            Some(place) => Some(place.value()?),
            None => None,
        },
        Number::Unary(operator, of) => {
            let value = number(kernel, object, of)?;
            value.map(|value| match operator {
                Unary::Not => u64::from(value == 0),
                Unary::Complement => !value,
            })
        }
        Number::Same(left, right, is_equal) => {
            let texts = (text(kernel, object, left)?, text(kernel, object, right)?);
            match texts {
                (Some(left), Some(right)) => Some(u64::from((left == right) == *is_equal)),
                _ => None,
            }
        }
        Number::Binary(operator, left, right) => {
            let left = number(kernel, object, left)?;
            let is_true = left.unwrap_or(0) != 0;
            match operator {
                Binary::And if !is_true => return Ok(Some(0)),
                Binary::Or if is_true => return Ok(Some(1)),
                _ => binary(*operator, left, number(kernel, object, right)?),
            }
        }
    })
}

fn binary(operator: Binary, left: Option<u64>, right: Option<u64>) -> Option<u64> {
    // The left side of both of these decides nothing.
    if matches!(operator, Binary::And | Binary::Or) {
        return Some(u64::from(right.unwrap_or(0) != 0));
    }
    let (left, right) = (left?, right?);
    let shift = u32::try_from(right).unwrap_or(u32::MAX);
    Some(match operator {
        Binary::And | Binary::Or => 0,
        Binary::Equal => u64::from(left == right),
        Binary::Unequal => u64::from(left != right),
        Binary::Less => u64::from(left < right),
        Binary::LessOrEqual => u64::from(left <= right),
        Binary::Greater => u64::from(left > right),
        Binary::GreaterOrEqual => u64::from(left >= right),
        Binary::BitAnd => left & right,
        Binary::BitOr => left | right,
        Binary::BitXor => left ^ right,
        Binary::ShiftLeft => left.checked_shl(shift).unwrap_or(0),
        Binary::ShiftRight => left.checked_shr(shift).unwrap_or(0),
        Binary::Add => left.wrapping_add(right),
        Binary::Subtract => left.wrapping_sub(right),
    })
}

/// The text of an expression for an object.
pub(super) fn text(
    kernel: &Kernel<'_>,
    object: Option<&Place<'_, '_>>,
    of: &Text,
) -> Result<Option<String>, RunningError> {
    let (Text::Array(located) | Text::Pointer(located)) = of else {
        let Text::Constant(text) = of else {
            return Ok(None);
        };
        return Ok(Some(text.clone()));
    };
    let Some(place) = place(kernel, object, located)? else {
        return Ok(None);
    };
    match of {
        Text::Pointer(_) => match place.value()? {
            0 => Ok(None),
            address => text_at(kernel, address).map(Some),
        },
        _ => place.text().map(Some),
    }
}

/// The characters at an address, up to the first NUL.
fn text_at(kernel: &Kernel<'_>, address: u64) -> Result<String, RunningError> {
    let mut bytes = Vec::new();
    while !bytes.contains(&0) && (bytes.len() as u64) < TEXT_MAX {
        let next = address.wrapping_add(bytes.len() as u64);
        let size = (PAGE - next % PAGE).min(TEXT_MAX - bytes.len() as u64);
        let mut part = vec![0; size as usize];
        kernel.read(next, &mut part)?;
        bytes.extend(part);
    }
    let printable = |byte: &u8| match byte {
        b' '..=b'~' => char::from(*byte),
        _ => '?',
    };
    let text = bytes.iter().take_while(|byte| **byte != 0);
    Ok(text.map(printable).collect())
}

/// The object at a place; `None` if a pointer on the way is null.
fn place<'k, 'a>(
    kernel: &'k Kernel<'a>,
    object: Option<&Place<'k, 'a>>,
    located: &Located,
) -> Result<Option<Place<'k, 'a>>, RunningError> {
    let mut place = match (&located.global, object) {
        (Some((address, of)), _) => kernel.object(*address, of)?,
        (None, Some(object)) => *object,
        (None, None) => return Ok(None),
    };
    for step in &located.steps {
        place = match step {
            Step::Element(index) => place.element(*index)?,
            Step::Member(name) => {
                let of = match place.target() {
                    Ok(None) => return Ok(None),
                    Ok(Some(target)) => target,
                    Err(RunningError::NotOfKind(_)) => place,
                    Err(error) => return Err(error),
                };
                of.member(name)?
            }
        };
    }
    Ok(Some(place))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_absent_compares_to_nothing() {
        for operator in [Binary::Equal, Binary::Unequal, Binary::Less] {
            assert_eq!(binary(operator, None, Some(0)), None);
        }
        assert_eq!(binary(Binary::Or, None, Some(7)), Some(1));
        assert_eq!(binary(Binary::And, Some(1), None), Some(0));
    }

    #[test]
    fn numbers_wrap_and_shifts_end() {
        assert_eq!(binary(Binary::Subtract, Some(0), Some(1)), Some(u64::MAX));
        assert_eq!(binary(Binary::Add, Some(u64::MAX), Some(1)), Some(0));
        assert_eq!(binary(Binary::ShiftLeft, Some(1), Some(64)), Some(0));
        assert_eq!(binary(Binary::ShiftRight, Some(8), Some(3)), Some(1));
        assert_eq!(binary(Binary::ShiftLeft, Some(1), Some(1 << 40)), Some(0));
    }
}
