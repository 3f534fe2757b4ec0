//! Serves the other ends of a test node's channels: `insula-peer COUNT`.

use std::process::ExitCode;

use insula::driver::Driver;

fn main() -> ExitCode {
    let count = std::env::args().nth(1).and_then(|word| word.parse().ok());
    let (Some(count), Ok(driver)) = (count, Driver::open()) else {
        eprintln!("insula-peer COUNT, in a node with insula.ko");
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
