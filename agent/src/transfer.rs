//! Sending files to the command, and receiving them.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use insula_agent::Receive;
use insula_agent::copy::{CopyMessage, PackError, Target, pack, unpack};
use insula_agent::frame::{self, Reader};
use socket2::Socket;

/// Sends the file or folder at a path, or the error.
pub(crate) fn send(path: &[u8], stream: &Socket) -> io::Result<()> {
    let packed = pack(Path::new(OsStr::from_bytes(path)), &mut |message| {
        frame::write(stream, message)
    });
    match packed {
        Ok(copied) => frame::write(stream, &CopyMessage::End(copied)),
        Err(PackError::Send(error)) => Err(error),
        Err(error) => frame::write(stream, &CopyMessage::Failed(&error.to_string())),
    }
}

/// Receives files and confirms, or sends the error.
pub(crate) fn receive(
    request: &Receive,
    stream: &Socket,
    mut reader: Reader<Socket>,
) -> io::Result<()> {
    let target = Target {
        path: Path::new(OsStr::from_bytes(&request.path)),
        name: request.name.as_deref().map(OsStr::from_bytes),
    };
    match unpack(&mut reader, &target) {
        Ok(copied) => frame::write(stream, &CopyMessage::End(copied)),
        Err(error) => {
            frame::write(stream, &CopyMessage::Failed(&error.to_string()))?;
            // Closing a socket with unread data resets it, and the error would be lost.
            while let Ok(Some(message)) = reader.read() {
                if matches!(message, CopyMessage::End(_) | CopyMessage::Failed(_)) {
                    break;
                }
            }
            Ok(())
        }
    }
}
