//! Fields of a message in protobuf's wire format (protobuf.dev, "Encoding"), as far as CRIU's images use
//! it: no groups.

/// What is wrong with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Malformed {
    /// It ends within a field.
    #[error("a message ends within a field")]
    Truncated,
    /// A number has more than 64 bits.
    #[error("a number has more than 64 bits")]
    Number,
    /// A field has no number, or a type that there is not.
    #[error("a field is of no known type")]
    Type,
    /// A field has another type than it should.
    #[error("field {0} has another type")]
    OtherType(u32),
    /// A field that must be there is missing.
    #[error("field {0} is missing")]
    Missing(u32),
}

/// A field's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    /// Four or eight bytes.
    Fixed(&'a [u8]),
}

/// A message, as its fields with their numbers in the order in which they come.
#[derive(Clone, Debug)]
pub(super) struct Message<'a>(Vec<(u32, Value<'a>)>);

impl<'a> Message<'a> {
    pub(super) fn parse(mut bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut fields = Vec::new();
        while !bytes.is_empty() {
            fields.push(field(&mut bytes)?);
        }
        Ok(Self(fields))
    }

    /// The largest number of a field.
    pub(super) fn largest(&self) -> u32 {
        self.0.iter().map(|(number, _)| *number).max().unwrap_or(0)
    }

    /// A number. Of several of a field that is no list the last counts.
    pub(super) fn number(&self, field: u32) -> Result<Option<u64>, Malformed> {
        match self.last(field) {
            Some(Value::Number(number)) => Ok(Some(number)),
            None => Ok(None),
            Some(_) => Err(Malformed::OtherType(field)),
        }
    }

    /// A number that must be there.
    pub(super) fn required(&self, field: u32) -> Result<u64, Malformed> {
        self.number(field)?.ok_or(Malformed::Missing(field))
    }

    /// A message within.
    pub(super) fn message(&self, field: u32) -> Result<Option<Message<'a>>, Malformed> {
        match self.last(field) {
            Some(Value::Bytes(bytes)) => Message::parse(bytes).map(Some),
            None => Ok(None),
            Some(_) => Err(Malformed::OtherType(field)),
        }
    }

    /// All numbers of a list.
    pub(super) fn numbers(&self, field: u32) -> Result<Vec<u64>, Malformed> {
        let own = self.0.iter().filter(|(number, _)| *number == field);
        own.map(|(_, value)| match value {
            Value::Number(number) => Ok(*number),
            _ => Err(Malformed::OtherType(field)),
        })
        .collect()
    }

    fn last(&self, field: u32) -> Option<Value<'a>> {
        let mut own = self.0.iter().rev().filter(|(number, _)| *number == field);
        own.next().map(|(_, value)| *value)
    }
}

fn field<'a>(bytes: &mut &'a [u8]) -> Result<(u32, Value<'a>), Malformed> {
    let key = number(bytes)?;
    let name = u32::try_from(key >> 3).ok().filter(|name| *name > 0);
    let name = name.ok_or(Malformed::Type)?;
    let value = match key & 7 {
        0 => Value::Number(number(bytes)?),
        1 => Value::Fixed(take(bytes, 8)?),
        2 => {
            let length = usize::try_from(number(bytes)?).map_err(|_| Malformed::Truncated)?;
            Value::Bytes(take(bytes, length)?)
        }
        5 => Value::Fixed(take(bytes, 4)?),
        _ => return Err(Malformed::Type),
    };
    Ok((name, value))
}

fn take<'a>(bytes: &mut &'a [u8], count: usize) -> Result<&'a [u8], Malformed> {
    let (taken, rest) = bytes.split_at_checked(count).ok_or(Malformed::Truncated)?;
    *bytes = rest;
    Ok(taken)
}

/// A number in groups of seven bits, the lowest first.
fn number(bytes: &mut &[u8]) -> Result<u64, Malformed> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let [byte] = take(bytes, 1)? else {
            return Err(Malformed::Truncated);
        };
        let bits = u64::from(byte & 0x7f);
        if shift == 63 && bits > 1 {
            return Err(Malformed::Number);
        }
        number |= bits << shift;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(Malformed::Number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn encode(mut number: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        while number > 0x7f {
            bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        bytes.push(number as u8);
        bytes
    }

    #[test]
    fn malformed_messages_are_told() {
        let wrong = |bytes: &[u8]| Message::parse(bytes).unwrap_err();
        assert_eq!(wrong(&[8]), Malformed::Truncated);
        assert_eq!(wrong(&[8, 0x80]), Malformed::Truncated);
        assert_eq!(wrong(&[0x0a, 200, 1]), Malformed::Truncated);
        assert_eq!(wrong(&[0x0b]), Malformed::Type);
        assert_eq!(wrong(&[0, 1]), Malformed::Type);
        assert_eq!(
            wrong(&[[8].as_slice(), &[0xff; 9], &[2]].concat()),
            Malformed::Number
        );
        assert_eq!(
            wrong(&[[0x0a].as_slice(), &[0xff; 9], &[1]].concat()),
            Malformed::Truncated
        );
        let message = Message::parse(&[8, 1, 0x12, 0]).unwrap();
        assert_eq!(message.number(2), Err(Malformed::OtherType(2)));
        assert_eq!(message.required(3), Err(Malformed::Missing(3)));
        assert_eq!(message.largest(), 2);
    }

    proptest! {
        #[test]
        fn numbers_read_back(number: u64, field in 1_u32..1000) {
            let bytes = [encode(u64::from(field) << 3), encode(number)].concat();
            let message = Message::parse(&bytes).unwrap();
            prop_assert_eq!(message.number(field), Ok(Some(number)));
            // The end of it is missed, wherever it is.
            for length in 1..bytes.len() {
                prop_assert!(Message::parse(&bytes[..length]).is_err());
            }
        }

        #[test]
        fn any_bytes_are_parsed_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(message) = Message::parse(&bytes) {
                let _ = message.message(1).map(|inner| inner.map(|inner| inner.numbers(1)));
            }
        }
    }
}
