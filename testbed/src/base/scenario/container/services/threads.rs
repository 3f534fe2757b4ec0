//! Python with threads that compute, share a queue and locks, and answer in turn.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use super::{Client, GOES_ON_TIMEOUT, start as start_container};
use crate::base::Finding;
use crate::base::support::insula_command::{assert_equal, wait_for};

const NAME: &str = "threads";
const PORT: u16 = 90;
/// Eight threads take numbers from a queue; the answer to a number is the sum of the squares up to it, which all
/// of them have computed a part of.
const PROGRAM: &str = r#"
import queue, socket, threading, time
THREADS = 8
questions, answers = queue.Queue(), queue.Queue()
turn = threading.Condition()
mine = threading.local()
handled = [0] * THREADS

def work(number):
    mine.number = number
    while True:
        first, last = questions.get()
        total = sum(one * one for one in range(first, last))
        time.sleep(0.001)
        with turn:
            handled[mine.number] += 1
            turn.notify_all()
        answers.put(total)

for number in range(THREADS):
    threading.Thread(target=work, args=(number,), daemon=True).start()
door = socket.create_server(("", 90))
asked = 0
while True:
    peer = door.accept()[0].makefile("rw")
    for line in peer:
        upto = int(line)
        edges = [upto * part // 16 for part in range(17)]
        for first, last in zip(edges, edges[1:]):
            questions.put((first, last))
        asked += 16
        with turn:
            turn.wait_for(lambda: sum(handled) == asked)
        print(sum(answers.get() for _ in range(16)), file=peer, flush=True)
"#;

pub(super) fn start(node: &str) -> Result<Client, Finding> {
    let address = start_container(NAME, node, &["python3", "-c", PROGRAM])?;
    wait_for("Python to serve", || {
        Ok(TcpStream::connect((address.as_str(), PORT)).ok())
    })?;
    let stream = TcpStream::connect((address.as_str(), PORT))?;
    stream.set_read_timeout(Some(GOES_ON_TIMEOUT))?;
    let mut stream = BufReader::new(stream);
    Ok(Client::start(NAME, move |number| {
        let upto = 1000 + number % 1000;
        stream.get_mut().write_all(format!("{upto}\n").as_bytes())?;
        let mut answer = String::new();
        stream.read_line(&mut answer)?;
        let wanted = (0..upto).map(|one| one * one).sum::<u64>();
        assert_equal(
            "the sum",
            &answer.trim_end().to_owned(),
            &wanted.to_string(),
        )
    }))
}
