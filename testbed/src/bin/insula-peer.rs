//! Serves the other ends of a test node's channels, `insula-peer COUNT`, or its sockets,
//! `insula-peer vsock`.

use std::process::ExitCode;

use insula::driver::Driver;

fn main() -> ExitCode {
    let word = std::env::args().nth(1);
    if word.as_deref() == Some("vsock") {
        let Err(error) = testbed::socket_peer::serve();
        eprintln!("vsock: {error}");
        return ExitCode::FAILURE;
    }
    let count = word.and_then(|word| word.parse().ok());
    let (Some(count), Ok(driver)) = (count, Driver::open()) else {
        eprintln!("insula-peer COUNT | vsock, in a node with insula.ko");
        return ExitCode::FAILURE;
    };
    std::thread::scope(|scope| {
        let driver = &driver;
        for index in 0..count {
            scope.spawn(move || {
                if let Err(error) = testbed::peer::serve(driver, index) {
                    eprintln!("channel {index}: {error}");
                }
            });
        }
    });
    ExitCode::FAILURE
}
