//! Values as arguments of this program's roles: text, since an argument has no null bytes.

use std::ffi::{OsStr, OsString};
use std::io;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// A value as an argument.
pub(crate) fn to_word(value: &impl Serialize) -> io::Result<OsString> {
    let bytes = postcard::to_stdvec(value).map_err(io::Error::other)?;
    let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(text.into())
}

/// The value of an argument; the default for none.
pub(crate) fn from_word<T: DeserializeOwned + Default>(word: &OsStr) -> io::Result<T> {
    let bytes = word.as_encoded_bytes();
    if bytes.is_empty() {
        return Ok(T::default());
    }
    let byte = |digits: &[u8]| {
        let digits = str::from_utf8(digits).ok()?;
        let byte = u8::from_str_radix(digits, 16).ok();
        byte.filter(|_| digits.len() == 2)
    };
    let bytes: Option<Vec<_>> = bytes.chunks(2).map(byte).collect();
    let bytes = bytes.ok_or(io::ErrorKind::InvalidInput)?;
    postcard::from_bytes(&bytes).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_back() {
        let value = (String::from("/dev/x\0y"), Some(7_u64), vec![-1_i32]);
        let word = to_word(&value).unwrap();
        assert_eq!(
            from_word::<(String, Option<u64>, Vec<i32>)>(&word).unwrap(),
            value
        );
        assert_eq!(from_word::<u32>(OsStr::new("")).unwrap(), 0);
        for bad in ["x", "0", "zz", "ff"] {
            assert!(from_word::<String>(OsStr::new(bad)).is_err(), "{bad}");
        }
    }
}
