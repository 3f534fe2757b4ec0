//! The first process of a Linux node.
//!
//! | module | concept |
//! |---|---|
//! | `init` | what the first process does, from its first to its last moment |
//! | `files` | the file systems that every user land expects |
//! | `drivers` | loading the modules that the image brings |
//! | `root` | a root that is not the initial file system |
//! | `interfaces` | giving the network card its address |
//! | `power` | ending the node: when its power button is pressed, or its program has ended |
//! | `server` | the process that listens to the command |
//! | `session` | a program run for the command |
//! | `program` | starting programs |
//! | `transfer` | files sent to the command, and taken from it |
//! | `say` | lines in the kernel log, which the base reads |
//!
//! The server is a process of its own, so that the first process can bury whatever orphan there is
//! without taking from the server what its own programs leave, and so that its end is no end of the
//! node.

mod drivers;
mod files;
mod init;
mod interfaces;
mod power;
mod program;
mod root;
mod say;
mod server;
mod session;
mod transfer;

use std::process::ExitCode;

fn main() -> ExitCode {
    if rustix::process::getpid().is_init() {
        init::run();
    }
    let mut words = std::env::args_os().skip(1);
    match words.next().as_deref().and_then(|word| word.to_str()) {
        Some(program::BEGIN) => program::become_it(words),
        Some(server::SERVE) => server::serve(),
        _ => {
            eprintln!("insula-agent is the first process of a node: see `insula image build`");
            ExitCode::from(2)
        }
    }
}
