//! Tests of parsing.

use proptest::prelude::*;

use super::*;

/// The expression with all brackets, and members by `.` only.
fn shown(expression: &Expression) -> String {
    match expression {
        Expression::Number(number) => number.to_string(),
        Expression::Text(text) => format!("\"{text}\""),
        Expression::Enumerator { enumeration, name } => format!("{enumeration}::{name}"),
        Expression::Place(place) => shown_place(place),
        Expression::Unary(Unary::Not, of) => format!("!{}", shown(of)),
        Expression::Unary(Unary::Complement, of) => format!("~{}", shown(of)),
        Expression::Binary(operator, left, right) => {
            let levels = LEVELS.iter().flat_map(|level| level.iter());
            let (sign, _) = levels.clone().find(|(_, one)| one == operator).unwrap();
            format!("({} {sign} {})", shown(left), shown(right))
        }
    }
}

fn shown_place(place: &Place) -> String {
    let mut text = match &place.start {
        Start::Object => String::new(),
        Start::Global { symbol, of } => format!("{symbol}:{of}"),
    };
    for step in &place.steps {
        match step {
            Step::Member(name) if text.is_empty() => text.push_str(name),
            Step::Member(name) => text.push_str(&format!(".{name}")),
            Step::Element(index) => text.push_str(&format!("[{index}]")),
        }
    }
    text
}

fn parsed(text: &str) -> String {
    shown(&parse(text).unwrap_or_else(|error| panic!("{text}: {error}")))
}

#[test]
fn operators_bind_as_documented() {
    for (text, expected) in [
        ("pid == 0", "(pid == 0)"),
        ("a & 4 == 4", "((a & 4) == 4)"),
        (
            "a || b && c == 1 + 2 << 3",
            "(a || (b && (c == ((1 + 2) << 3))))",
        ),
        ("a - b - c", "((a - b) - c)"),
        ("!a && ~b | c", "(!a && (~b | c))"),
        ("!(a || b)", "!(a || b)"),
        ("a<=0xff", "(a <= 255)"),
    ] {
        assert_eq!(parsed(text), expected, "{text}");
    }
}

#[test]
fn places_have_members_and_elements() {
    for (text, expected) in [
        ("real_parent->pid", "real_parent.pid"),
        ("a.b[3].c", "a.b[3].c"),
        (
            "init_task:task_struct.comm == \"swapper\"",
            "(init_task:task_struct.comm == \"swapper\")",
        ),
        ("kptr_restrict : int", "kptr_restrict:int"),
        (
            "state == module_state::MODULE_STATE_LIVE",
            "(state == module_state::MODULE_STATE_LIVE)",
        ),
    ] {
        assert_eq!(parsed(text), expected, "{text}");
    }
}

#[test]
fn what_is_wrong_is_said_with_its_place() {
    for (text, expected) in [
        (
            "",
            "at character 1: there should be a name, a number, a text or '('",
        ),
        ("pid = 0", "at character 5: '=' means nothing here"),
        ("pid == ", "at character 8: there should be a name"),
        (
            "pid 0",
            "at character 5: there should be an operator, or the end",
        ),
        ("(pid", "at character 5: there should be ')'"),
        (
            "a[b]",
            "at character 3: there should be the number of an element",
        ),
        ("a.", "at character 3: there should be the name of a member"),
        (
            "x:",
            "at character 3: there should be the type of the variable",
        ),
        (
            "0x1_0 == 1",
            "at character 1: '0x1_0' is no number of 64 bits",
        ),
        ("99999999999999999999", "is no number of 64 bits"),
        ("comm == \"cp", "at character 9: the text does not end"),
        ("ä", "at character 1: 'ä' means nothing here"),
    ] {
        let error = parse(text).unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn nothing_nests_without_end() {
    let deep = |sign: &str, count: usize| format!("{}a", sign.repeat(count));
    assert!(parse(&deep("!", 60)).is_ok());
    for sign in ["!", "~", "("] {
        let error = parse(&deep(sign, 900)).unwrap_err();
        assert!(error.what.contains("less nesting"), "{error}");
    }
    let error = parse(&deep("a+", 400)).unwrap_err();
    assert!(error.what.contains("fewer operators"), "{error}");
    let error = parse(&"a".repeat(LENGTH_MAX + 1)).unwrap_err();
    assert!(error.what.contains("characters at most"), "{error}");
}

proptest! {
    /// Whatever the text, it comes to an end without a panic; what is parsed has one meaning.
    #[test]
    fn any_text_is_parsed_or_refused(text in "[a-c0-2 .:&|!=<>()\\[\\]\"~^+-]{0,40}") {
        if let Ok(expression) = parse(&text) {
            let again = parse(&shown(&expression)).unwrap();
            prop_assert_eq!(again, expression);
        }
    }

    #[test]
    fn any_characters_at_all(text in "\\PC{0,60}") {
        if let Err(error) = parse(&text) {
            prop_assert!(error.at <= text.len());
        }
    }
}
