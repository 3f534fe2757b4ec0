//! Messages of the domain name system (RFC 1035, section 4), as far as a server of addresses understands them.

use std::net::Ipv4Addr;

/// Bytes of a header.
const HEADER_SIZE: usize = 12;
/// Most bytes of a label, and of a name with the lengths of its labels.
const LABEL_MAX: usize = 63;
const NAME_MAX: usize = 255;
/// Class and type of an address.
const IN: [u8; 2] = [0, 1];
const A: [u8; 2] = [0, 1];
/// In the header's third byte: a response, the kind of query, and whether to ask others. In its fourth one:
/// others are asked, and the response's code.
const RESPONSE: u8 = 0x80;
const AUTHORITATIVE: u8 = 0x04;
const OPCODE: u8 = 0x78;
const RECURSION_DESIRED: u8 = 0x01;
const RECURSION_AVAILABLE: u8 = 0x80;
/// Seconds for which an answer may be kept: a node of the same name may have another address soon.
const KEPT_S: [u8; 4] = [0, 0, 0, 5];
/// Points at the question's name.
const SAME_NAME: [u8; 2] = [0xc0, HEADER_SIZE as u8];

/// Code of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    /// Also without an address.
    Success = 0,
    /// No server answers.
    Failure = 2,
    /// There is no such name.
    NoName = 3,
}

/// A query's only question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Question<'a> {
    /// The name, in lower case, its labels joined by dots.
    pub(super) name: String,
    /// Whether an address is asked for.
    pub(super) is_address: bool,
    /// Header and question.
    bytes: &'a [u8],
}

impl<'a> Question<'a> {
    /// Reads a query; `None` if it is none, or another than one for a name of the Internet.
    pub(super) fn parse(query: &'a [u8]) -> Option<Self> {
        let header = query.first_chunk::<HEADER_SIZE>()?;
        if header[2] & (RESPONSE | OPCODE) != 0 || header[4..6] != [0, 1] {
            return None;
        }
        let (name, after) = name(query)?;
        let [kind @ .., class_high, class_low] = *query.get(after..)?.first_chunk::<4>()?;
        ([class_high, class_low] == IN).then_some(Self {
            name,
            is_address: kind == A,
            bytes: &query[..after + 4],
        })
    }

    /// The response with an address, or without one.
    pub(super) fn response(&self, code: Code, address: Option<Ipv4Addr>) -> Vec<u8> {
        let address = address.filter(|_| self.is_address);
        let mut response = header(self.bytes, code, address.is_some());
        response[2] |= AUTHORITATIVE;
        response[5] = 1;
        response.extend(&self.bytes[HEADER_SIZE..]);
        if let Some(address) = address {
            let octets = address.octets();
            let record = [&SAME_NAME[..], &A, &IN, &KEPT_S, &[0, 4], &octets];
            response.extend(record.concat());
        }
        response
    }
}

/// The response to any query, without its question; `None` if it is shorter than a header.
pub(super) fn failure(query: &[u8]) -> Option<Vec<u8>> {
    (query.len() >= HEADER_SIZE).then(|| header(query, Code::Failure, false))
}

/// Whether a message is the response to this query, as far as its id tells.
pub(super) fn responds(message: &[u8], query: &[u8]) -> bool {
    message.len() >= HEADER_SIZE && query.starts_with(&message[..2]) && message[2] & RESPONSE != 0
}

fn header(query: &[u8], code: Code, has_answer: bool) -> Vec<u8> {
    let flags = RESPONSE | query[2] & (OPCODE | RECURSION_DESIRED);
    let mut header = vec![query[0], query[1], flags, RECURSION_AVAILABLE | code as u8];
    header.resize(HEADER_SIZE, 0);
    header[7] = has_answer.into();
    header
}

/// The name of the question, and where it ends. No query has a compressed one.
fn name(query: &[u8]) -> Option<(String, usize)> {
    let (mut labels, mut at) = (Vec::new(), HEADER_SIZE);
    loop {
        let length = usize::from(*query.get(at)?);
        at += 1;
        if length == 0 {
            return Some((labels.join("."), at));
        }
        if length > LABEL_MAX || at + length > HEADER_SIZE + NAME_MAX {
            return None;
        }
        let label = std::str::from_utf8(query.get(at..at + length)?).ok()?;
        labels.push(label.to_ascii_lowercase());
        at += length;
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A query of that type.
    pub(in super::super) fn query(name: &str, kind: u8) -> Vec<u8> {
        let mut query = vec![7, 8, RECURSION_DESIRED, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in name.split('.') {
            query.push(label.len() as u8);
            query.extend(label.as_bytes());
        }
        query.extend([0, 0, kind, 0, 1]);
        query
    }

    #[test]
    fn an_address_is_answered() {
        let query = query("Web.insula", 1);
        let question = Question::parse(&query).unwrap();
        assert_eq!(question.name, "web.insula");
        let response = question.response(Code::Success, Some(Ipv4Addr::new(10, 78, 0, 9)));
        assert_eq!(response[..12], [7, 8, 0x85, 0x80, 0, 1, 0, 1, 0, 0, 0, 0]);
        assert_eq!(response[12..query.len()], query[12..]);
        let record = [0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 5, 0, 4, 10, 78, 0, 9];
        assert_eq!(response[query.len()..], record);
        assert!(responds(&response, &query));
    }

    #[test]
    fn a_name_without_what_is_asked_for_has_no_answer() {
        let query = query("web", 28);
        let question = Question::parse(&query).unwrap();
        let response = question.response(Code::Success, Some(Ipv4Addr::LOCALHOST));
        assert_eq!(response[2..8], [0x85, 0x80, 0, 1, 0, 0]);
        assert_eq!(response.len(), query.len());
        assert_eq!(question.response(Code::NoName, None)[3], 0x83);
        assert_eq!(failure(&query).unwrap()[2..4], [0x81, 0x82]);
        assert_eq!(failure(&query[..11]), None);
    }

    #[test]
    fn what_is_no_question_is_not_understood() {
        let good = query("web", 1);
        let changed = |at: usize, byte: u8| {
            let mut query = good.clone();
            query[at] = byte;
            query
        };
        for query in [
            changed(2, RESPONSE),
            changed(2, 0x28),
            changed(5, 2),
            changed(12, 0xc0),
            changed(12, 4),
            changed(13, 0xff),
            changed(good.len() - 1, 3),
            good[..good.len() - 1].to_vec(),
            query(&vec!["a".repeat(63); 5].join("."), 1),
        ] {
            assert_eq!(Question::parse(&query), None, "{query:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut query = query("web", 1);
            let before = query.len() - bytes.len().min(20);
            query.truncate(before);
            query.extend(&bytes);
            for query in [&bytes, &query] {
                if let Some(question) = Question::parse(query) {
                    question.response(Code::Success, Some(Ipv4Addr::LOCALHOST));
                }
                let _ = (failure(query), responds(query, &bytes));
            }
        }
    }
}
