//! A server that keeps notes by name, and its client.
//!
//! ```sh
//! insula exec quiet -- ./notes serve &
//! insula exec quiet -- ./notes put greeting hello
//! insula exec quiet -- ./notes get greeting
//! ```

use std::collections::BTreeMap;

use insula_server::{Call, Client, Endpoint, Error, Handler, Reply, Request};

const PUT: u32 = 1;
const GET: u32 = 2;

#[derive(Default)]
struct Notes(BTreeMap<Vec<u8>, Vec<u8>>);

impl Handler for Notes {
    /// Word 0 is the length of the name, which the text follows. Replies with the length of the note.
    fn handle<'a>(&'a mut self, request: &Request<'_>) -> Reply<'a> {
        let mut sent = vec![0; request.readable.min(4096) as usize];
        let length = request.read(0, &mut sent).unwrap_or(0);
        sent.truncate(length);
        let (name, text) = sent.split_at((request.words[0] as usize).min(length));
        if request.operation == PUT {
            self.0.insert(name.to_vec(), text.to_vec());
        }
        let note = self.0.get(name).map_or(&b""[..], Vec::as_slice);
        Reply::new([note.len() as u64, 0, 0, 0, 0, 0], note)
    }
}

fn ask(operation: u32, name: &str, text: &str) -> Result<String, Error> {
    let mut note = [0; 4096];
    let [length, ..] = Client::open("notes")?.call(Call {
        operation,
        words: [name.len() as u64, 0, 0, 0, 0, 0],
        readable: [name, text].concat().as_bytes(),
        writable: &mut note,
        timeout: None,
    })?;
    Ok(String::from_utf8_lossy(&note[..length as usize]).into_owned())
}

fn main() -> Result<(), Error> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["serve"] => Err(Endpoint::create("notes")?.serve(&mut Notes::default(), None)),
        ["put", name, text] => ask(PUT, name, text).map(drop),
        ["get", name] => ask(GET, name, "").map(|note| println!("{note}")),
        _ => panic!("notes serve | put NAME TEXT | get NAME"),
    }
}
