//! System errors as text for people.

/// Removes the error numbers that Rust's standard library appends to system errors: the text before
/// them says the same.
#[must_use]
pub fn plain(text: &str) -> String {
    const NUMBER: &str = " (os error ";
    let mut parts = text.split(NUMBER);
    let mut whole = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once(')') {
            Some((number, rest)) if number.bytes().all(|byte| byte.is_ascii_digit()) => {
                whole.push_str(rest);
            }
            _ => {
                whole.push_str(NUMBER);
                whole.push_str(part);
            }
        }
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_numbers_are_removed() {
        let error = std::io::Error::from_raw_os_error(2);
        let text = format!("/a: {error}; /b (os error x): {error}\nhint");
        let expected =
            "/a: No such file or directory; /b (os error x): No such file or directory\nhint";
        assert_eq!(plain(&text), expected);
    }
}
