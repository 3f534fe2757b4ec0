//! Sockets of a test node to the base (AF_VSOCK): an echo server.

use std::convert::Infallible;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::thread;

use vsock::{VMADDR_CID_ANY, VsockListener, VsockStream};

/// Port on which it listens.
pub const PORT: u32 = 1024;
/// Line that it prints when it listens.
pub const LISTENS: &str = "listens";
/// Size of the buffer, in bytes.
const BUFFER_BYTES: usize = 1 << 16;

/// Echoes every connection until its other side has finished.
///
/// # Errors
/// When there can be no listening socket, or no thread.
pub fn serve() -> io::Result<Infallible> {
    let listener = VsockListener::bind_with_cid_port(VMADDR_CID_ANY, PORT)?;
    println!("{LISTENS}");
    loop {
        let (stream, _) = listener.accept()?;
        thread::Builder::new().spawn(move || {
            // A reset connection is no error of the server.
            let _ = echo(stream);
        })?;
    }
}

fn echo(mut stream: VsockStream) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        match stream.read(&mut buffer)? {
            0 => return stream.shutdown(Shutdown::Both),
            count => stream.write_all(&buffer[..count])?,
        }
    }
}
