//! Files sent to the command, and taken from it.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use insula_agent::Take;
use insula_agent::copy::{PackError, Parcel, Target, pack, unpack};
use insula_agent::frame::{self, Reader};
use vsock::VsockStream;

/// Sends what is at a path, or why that cannot be.
pub(crate) fn send(path: &[u8], stream: &VsockStream) -> io::Result<()> {
    let packed = pack(Path::new(OsStr::from_bytes(path)), &mut |parcel| {
        frame::write(stream, parcel)
    });
    match packed {
        Ok(copied) => frame::write(stream, &Parcel::End(copied)),
        Err(PackError::Send(error)) => Err(error),
        Err(error) => frame::write(stream, &Parcel::Failed(&error.to_string())),
    }
}

/// Takes what comes, and tells that it has, or why it cannot.
pub(crate) fn take(
    take: &Take,
    stream: &VsockStream,
    mut reader: Reader<VsockStream>,
) -> io::Result<()> {
    let target = Target {
        path: Path::new(OsStr::from_bytes(&take.path)),
        name: take.name.as_deref().map(OsStr::from_bytes),
    };
    match unpack(&mut reader, &target) {
        Ok(copied) => frame::write(stream, &Parcel::End(copied)),
        Err(error) => {
            frame::write(stream, &Parcel::Failed(&error.to_string()))?;
            // Else the answer were lost: a socket that is closed with something unread is reset.
            while let Ok(Some(parcel)) = reader.read() {
                if matches!(parcel, Parcel::End(_) | Parcel::Failed(_)) {
                    break;
                }
            }
            Ok(())
        }
    }
}
