//! Program of a test node beyond its shell: serves the node's ends of its channels, `insula-peer
//! COUNT`, or its sockets, `insula-peer vsock`; fills its memory, `insula-peer fill`.

use std::process::ExitCode;

use insula_driver::Driver;
use testbed::node::memory_fill::Filled;

fn main() -> ExitCode {
    let word = std::env::args().nth(1).unwrap_or_default();
    match word.as_str() {
        "vsock" => {
            let Err(error) = testbed::node::socket_peer::serve();
            eprintln!("vsock: {error}");
            ExitCode::FAILURE
        }
        "fill" => fill(),
        count => channels(count),
    }
}

fn fill() -> ExitCode {
    match testbed::node::memory_fill::fill() {
        Ok(Filled {
            filled_mib,
            bad_mib,
        }) => {
            println!("filled_mib={filled_mib} bad_mib={bad_mib}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("fill: {error}");
            ExitCode::FAILURE
        }
    }
}

fn channels(count: &str) -> ExitCode {
    let (Ok(count), Ok(driver)) = (count.parse::<u32>(), Driver::open()) else {
        eprintln!("insula-peer COUNT | vsock | fill, in a node with insula.ko");
        return ExitCode::FAILURE;
    };
    std::thread::scope(|scope| {
        let driver = &driver;
        for index in 0..count {
            scope.spawn(move || {
                if let Err(error) = testbed::node::peer::serve(driver, index) {
                    eprintln!("channel {index}: {error}");
                }
            });
        }
    });
    ExitCode::FAILURE
}
