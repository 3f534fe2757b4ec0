//! The agent: the first process of a Linux node.
//!
//! | module | concept |
//! |---|---|
//! | `init` | the first process |
//! | `base_agent` | what is in its place for containers on the base |
//! | `archive` | the program `tar` that CRIU executes |
//! | `files` | mounting the standard file systems |
//! | `containers` | programs in namespaces of their own |
//! | `drivers` | loading the image's kernel modules |
//! | `root` | mounting and switching to the root |
//! | `interfaces` | configuring network interfaces |
//! | `route` | requests to the kernel about them |
//! | `power` | power-off and reboot |
//! | `server` | the process that serves the command |
//! | `session` | running a program for the command |
//! | `main_program` | the node's own program, and commands that are attached to it |
//! | `program`, `user`, `restrict` | starting programs, as users, with restrictions |
//! | `argument` | values as arguments of this program's roles |
//! | `rename` | taking another identity, in a copy of a node |
//! | `transfer` | sending and receiving files |
//! | `namespace` | the calling thread's namespaces |
//! | `log` | lines in the kernel log, which the base reads |
//!
//! The server is a separate process, so that the first process can reap all orphans without taking
//! the exit statuses of the server's children, and so that the server's exit does not end the node.

mod archive;
mod argument;
mod base_agent;
mod clock;
mod containers;
mod drivers;
mod files;
mod init;
mod interfaces;
mod log;
mod main_program;
mod namespace;
mod power;
mod program;
mod rename;
mod resolver;
mod restrict;
mod root;
mod route;
mod server;
mod session;
mod signal;
mod transfer;
mod user;

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut words = std::env::args_os();
    let program = words.next().unwrap_or_default();
    if archive::is_meant(&program) {
        return archive::run(words);
    }
    let role = words.next();
    let role = role.as_deref().and_then(|word| word.to_str());
    // A container's first process is one of its process ids, too.
    let of_container = [
        containers::INSIDE,
        containers::POD,
        containers::TREE,
        containers::FIRST,
    ];
    let is_of_container = role.is_some_and(|role| of_container.contains(&role));
    if rustix::process::getpid().is_init() && !is_of_container {
        init::run();
    }
    match role {
        Some(program::EXEC) => program::exec(words),
        Some(containers::INSIDE) => containers::enter(words),
        Some(containers::POD) => containers::enter_pod(words),
        Some(containers::TREE) => containers::enter_tree(words),
        Some(containers::FIRST) => containers::run_first(words),
        Some(containers::HOLD) => containers::hold_input(),
        Some(containers::JOIN) => containers::join(words),
        Some(server::SERVE) => server::serve(),
        Some(server::SERVE_BASE) => server::serve_base(),
        Some(base_agent::BASE) => base_agent::run(),
        _ => {
            eprintln!("insula-agent is the first process of a node: see `insula image build`");
            ExitCode::from(2)
        }
    }
}
