//! Measures from within a program, on any kernel; see its usage. Times are printed in ticks of the
//! time stamp counter, which all of a machine's cores share.

use std::process::ExitCode;

use insula_bench::marks::Kind;
use insula_bench::primitive::Primitive;
use insula_bench::probe::{Call, Ticks, Way, call, marked, read, starts, through};
use insula_bench::{blocks, held, http, moved, responder, tcp};

const USAGE: &str = "insula-bench-probe call getpid|fcntl | read FILE SIZE fresh|ahead|reused|copied \
                     | through FILE | serve | stream ADDRESS BYTES | marked KIND FILE \
                     | polling | flood | rings FILE | hold BYTES TURNS | primitive NAME \
                     | starts PROGRAM | get ADDRESS:PORT [CONNECTIONS] \
                     | moves BYTES \
                     | blocks FILE reads|mix | blocks FILE sized BYTES | blocks FILE COUNT PROCESSES";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let measured = match words[..] {
        ["call", name] => Call::of(name).map(call),
        ["read", file, size, way] => match (size.parse(), Way::of(way)) {
            (Ok(size), Some(way)) => Some(read(file.as_ref(), size, way)),
            _ => None,
        },
        ["through", file] => Some(through(file.as_ref())),
        ["marked", kind, file] => Kind::of(kind).map(|kind| marked(kind, file.as_ref())),
        ["blocks", file, "reads"] => Some(blocks::each(file.as_ref(), false)),
        ["blocks", file, "sized", bytes] => {
            let bytes = bytes.parse().ok();
            bytes.map(|bytes| blocks::each_of_size(file.as_ref(), bytes))
        }
        ["moves", bytes] => bytes.parse().ok().map(moved::each),
        ["blocks", file, "mix"] => Some(blocks::each(file.as_ref(), true)),
        ["blocks", "when-told", file, count] => {
            let count = count.parse().ok();
            count.map(|count| blocks::when_told(file.as_ref(), count))
        }
        ["blocks", file, count, processes] => match (count.parse(), processes.parse()) {
            (Ok(count), Ok(processes)) => Some(blocks::by_many(file.as_ref(), count, processes)),
            _ => None,
        },
        ["starts", program] => Some(starts(program)),
        ["get", server] => server.parse().ok().map(http::get),
        ["get", server, connections] => match (server.parse(), connections.parse()) {
            (Ok(server), Ok(connections)) => Some(http::get_by_many(server, connections)),
            _ => None,
        },
        ["primitive", name] => Primitive::of(name).map(Primitive::measure),
        ["serve"] => Some(tcp::serve().map(|never| match never {})),
        ["polling"] => Some(responder::polling().map(|never| match never {})),
        ["flood"] => Some(responder::flood().map(|never| match never {})),
        ["hold", bytes, turns] => match (bytes.parse(), turns.parse()) {
            (Ok(bytes), Ok(turns)) => Some(held::serve(bytes, turns).map(|never| match never {})),
            _ => None,
        },
        ["rings", file] => Some(responder::rings(file.as_ref()).map(|never| match never {})),
        ["stream", address, bytes] => {
            let streamed = bytes.parse().map(|bytes| tcp::stream(address, bytes));
            streamed.ok().map(|ticks| ticks.map(Ticks::once))
        }
        _ => None,
    };
    match measured {
        Some(Ok(ticks)) => {
            println!("{} {}", ticks.median, ticks.p99);
            ExitCode::SUCCESS
        }
        Some(Err(error)) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
        None => {
            eprintln!("{USAGE}");
            ExitCode::FAILURE
        }
    }
}
