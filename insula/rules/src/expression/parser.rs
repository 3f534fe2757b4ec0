//! Parsing expressions: by recursive descent, one operator's precedence after the other.

use super::lexer::{Token, tokens};
use super::{Binary, Expression, LENGTH_MAX, Place, Start, Step, SyntaxError, Unary};

/// Deepest nesting of brackets and operators on one value.
const DEPTH_MAX: usize = 64;

/// Operators on two values, those that bind least first.
const LEVELS: [&[(&str, Binary)]; 9] = [
    &[("||", Binary::Or)],
    &[("&&", Binary::And)],
    &[("==", Binary::Equal), ("!=", Binary::Unequal)],
    &[
        ("<=", Binary::LessOrEqual),
        (">=", Binary::GreaterOrEqual),
        ("<", Binary::Less),
        (">", Binary::Greater),
    ],
    &[("|", Binary::BitOr)],
    &[("^", Binary::BitXor)],
    &[("&", Binary::BitAnd)],
    &[("<<", Binary::ShiftLeft), (">>", Binary::ShiftRight)],
    &[("+", Binary::Add), ("-", Binary::Subtract)],
];

/// Parses an expression.
///
/// # Errors
/// [`SyntaxError`].
pub fn parse(text: &str) -> Result<Expression, SyntaxError> {
    if text.len() > LENGTH_MAX {
        let what = format!("an expression has {LENGTH_MAX} characters at most");
        return Err(SyntaxError::new(LENGTH_MAX, what));
    }
    let mut parser = Parser {
        tokens: tokens(text)?,
        next: 0,
        depth: 0,
    };
    let expression = parser.binary(0)?;
    match parser.peek() {
        Token::End => Ok(expression),
        _ => Err(parser.expected("an operator, or the end")),
    }
}

/// The words, and which is next.
struct Parser {
    tokens: Vec<(usize, Token)>,
    next: usize,
    depth: usize,
}

impl Parser {
    /// The next word. The last one is [`Token::End`], which is never passed.
    fn peek(&self) -> &Token {
        &self.tokens[self.next].1
    }

    fn expected(&self, what: &str) -> SyntaxError {
        SyntaxError::new(self.tokens[self.next].0, format!("there should be {what}"))
    }

    /// Passes a sign, if it is next.
    fn accept(&mut self, sign: &str) -> bool {
        let is_next = matches!(self.peek(), Token::Sign(next) if *next == sign);
        self.next += usize::from(is_next);
        is_next
    }

    fn expect(&mut self, sign: &str) -> Result<(), SyntaxError> {
        match self.accept(sign) {
            true => Ok(()),
            false => Err(self.expected(&format!("'{sign}'"))),
        }
    }

    fn name(&mut self, what: &str) -> Result<String, SyntaxError> {
        let Token::Name(name) = self.peek() else {
            return Err(self.expected(what));
        };
        let name = name.clone();
        self.next += 1;
        Ok(name)
    }

    /// Operators of this level, from left to right, and of all that bind closer.
    fn binary(&mut self, level: usize) -> Result<Expression, SyntaxError> {
        let Some(operators) = LEVELS.get(level) else {
            return self.unary();
        };
        let mut left = self.binary(level + 1)?;
        let mut count = 0;
        while let Some((_, operator)) = operators.iter().find(|(sign, _)| self.accept(sign)) {
            count += 1;
            if count > DEPTH_MAX {
                return Err(self.expected("fewer operators"));
            }
            let right = self.binary(level + 1)?;
            left = Expression::Binary(*operator, left.into(), right.into());
        }
        Ok(left)
    }

    fn unary(&mut self) -> Result<Expression, SyntaxError> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(self.expected("less nesting"));
        }
        let expression = if self.accept("!") {
            Expression::Unary(Unary::Not, self.unary()?.into())
        } else if self.accept("~") {
            Expression::Unary(Unary::Complement, self.unary()?.into())
        } else if self.accept("(") {
            let inner = self.binary(0)?;
            self.expect(")")?;
            inner
        } else {
            self.operand()?
        };
        self.depth -= 1;
        Ok(expression)
    }

    fn operand(&mut self) -> Result<Expression, SyntaxError> {
        let operand = match self.peek() {
            Token::Number(number) => Expression::Number(*number),
            Token::Text(text) => Expression::Text(text.clone()),
            Token::Name(_) => return self.named(),
            Token::Sign(_) | Token::End => {
                return Err(self.expected("a name, a number, a text or '('"));
            }
        };
        self.next += 1;
        Ok(operand)
    }

    /// An enumerator, a global variable, or a member; then more members and elements.
    fn named(&mut self) -> Result<Expression, SyntaxError> {
        let name = self.name("a name")?;
        if self.accept("::") {
            return Ok(Expression::Enumerator {
                enumeration: name,
                name: self.name("a name of the enumeration")?,
            });
        }
        let (start, mut steps) = match self.accept(":") {
            true => {
                let of = self.name("the type of the variable")?;
                (Start::Global { symbol: name, of }, Vec::new())
            }
            false => (Start::Object, vec![Step::Member(name)]),
        };
        loop {
            if self.accept(".") || self.accept("->") {
                steps.push(Step::Member(self.name("the name of a member")?));
            } else if self.accept("[") {
                let Token::Number(index) = *self.peek() else {
                    return Err(self.expected("the number of an element"));
                };
                self.next += 1;
                self.expect("]")?;
                steps.push(Step::Element(index));
            } else {
                return Ok(Expression::Place(Place { start, steps }));
            }
        }
    }
}

#[cfg(test)]
mod tests;
