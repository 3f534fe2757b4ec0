//! Words of expressions.

use super::SyntaxError;

/// A word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Token {
    /// A name.
    Name(String),
    /// A number.
    Number(u64),
    /// A text, without its quotes.
    Text(String),
    /// An operator, bracket, or other sign.
    Sign(&'static str),
    /// The end of the expression.
    End,
}

/// Signs; of two that begin in the same way the longer one first.
const SIGNS: [&str; 25] = [
    "::", "->", "==", "!=", "<=", ">=", "<<", ">>", "&&", "||", ":", ".", "[", "]", "(", ")", "<",
    ">", "&", "|", "^", "+", "-", "!", "~",
];

/// The words of a text, each with the index of its first character, and the end.
pub(super) fn tokens(text: &str) -> Result<Vec<(usize, Token)>, SyntaxError> {
    let mut tokens = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start();
        let at = text.len() - rest.len();
        let Some(first) = rest.chars().next() else {
            tokens.push((at, Token::End));
            return Ok(tokens);
        };
        let (token, size) = match first {
            'a'..='z' | 'A'..='Z' | '_' => name(rest),
            '0'..='9' => number(rest).map_err(|what| SyntaxError::new(at, what))?,
            '"' => quoted(rest).ok_or_else(|| SyntaxError::new(at, "the text does not end"))?,
            _ => {
                let sign = SIGNS.into_iter().find(|sign| rest.starts_with(sign));
                let unknown = || SyntaxError::new(at, format!("'{first}' means nothing here"));
                let sign = sign.ok_or_else(unknown)?;
                (Token::Sign(sign), sign.len())
            }
        };
        tokens.push((at, token));
        rest = &rest[size..];
    }
}

fn is_word(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '_'
}

fn word(text: &str) -> &str {
    let end = text.find(|character| !is_word(character));
    &text[..end.unwrap_or(text.len())]
}

fn name(text: &str) -> (Token, usize) {
    let word = word(text);
    (Token::Name(word.to_owned()), word.len())
}

fn number(text: &str) -> Result<(Token, usize), String> {
    let word = word(text);
    let parsed = match word.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => word.parse(),
    };
    let number = parsed.map_err(|_| format!("'{word}' is no number of 64 bits"))?;
    Ok((Token::Number(number), word.len()))
}

fn quoted(text: &str) -> Option<(Token, usize)> {
    let inside = text.strip_prefix('"')?;
    let (content, _) = inside.split_once('"')?;
    Some((Token::Text(content.to_owned()), content.len() + 2))
}
