//! The transport to gdb: a socket of this machine, or standard input and output.

use std::fmt;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use gdbstub::conn::Connection;
use insula_base::error::Error;

use super::UNCHANGED;

/// Byte stream from and to a gdb.
pub struct GdbStream {
    input: Box<dyn Read>,
    output: Box<dyn Write>,
}

impl fmt::Debug for GdbStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GdbStream")
    }
}

impl GdbStream {
    /// Standard input and output: for gdb's `target remote | insula debug --stdio NODE`.
    #[must_use]
    pub fn stdio() -> Self {
        Self::new(io::stdin(), io::stdout())
    }

    fn new(input: impl Read + 'static, output: impl Write + 'static) -> Self {
        Self {
            input: Box::new(io::BufReader::new(input)),
            output: Box::new(io::BufWriter::new(output)),
        }
    }

    /// The next byte; `None` when gdb has disconnected.
    pub(super) fn read_byte(&mut self) -> io::Result<Option<u8>> {
        let mut byte = [0];
        loop {
            match self.input.read(&mut byte) {
                Ok(0) => return Ok(None),
                Ok(_) => return Ok(Some(byte[0])),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl Connection for GdbStream {
    type Error = io::Error;

    fn write(&mut self, byte: u8) -> io::Result<()> {
        self.output.write_all(&[byte])
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.output.write_all(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}

/// A listening socket for gdb.
#[derive(Debug)]
pub enum Listener {
    /// A socket in the file system, for its owner only. It is removed when this is dropped.
    Unix(UnixListener, PathBuf),
    /// A port of 127.0.0.1: for every user of this machine.
    Tcp(TcpListener),
}

impl Listener {
    /// Listens on a socket in the file system; replaces one without a listener.
    ///
    /// # Errors
    /// The system's.
    pub fn unix(path: &Path) -> Result<Self, Error> {
        let failed = |source| failed(path.display(), source);
        if let Some(folder) = path.parent() {
            let mut builder = fs::DirBuilder::new();
            builder.recursive(true).mode(0o700);
            builder.create(folder).map_err(failed)?;
        }
        if std::os::unix::net::UnixStream::connect(path).is_ok() {
            return Err(failed(io::ErrorKind::AddrInUse.into()));
        }
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        let listener = UnixListener::bind(path).map_err(failed)?;
        let listener = Self::Unix(listener, path.to_owned());
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(failed)?;
        Ok(listener)
    }

    /// Listens on a port of 127.0.0.1; 0 for any free one.
    ///
    /// # Errors
    /// The system's.
    pub fn tcp(port: u16) -> Result<Self, Error> {
        let bound = TcpListener::bind((Ipv4Addr::LOCALHOST, port));
        bound
            .map(Self::Tcp)
            .map_err(|source| failed(format_args!("port {port} of 127.0.0.1"), source))
    }

    /// Waits for a gdb to connect.
    ///
    /// # Errors
    /// The system's.
    pub fn accept(&self) -> Result<GdbStream, Error> {
        let accept = || match self {
            Self::Unix(listener, _) => {
                let (stream, _) = listener.accept()?;
                Ok(GdbStream::new(stream.try_clone()?, stream))
            }
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                Ok(GdbStream::new(stream.try_clone()?, stream))
            }
        };
        accept().map_err(|source| failed(self, source))
    }
}

/// The error for a place on which there is no listening.
fn failed(place: impl fmt::Display, source: io::Error) -> Error {
    Error::new(format!("cannot listen on {place}"))
        .because(source)
        .leaving(UNCHANGED)
}

impl fmt::Display for Listener {
    /// In the form that gdb's `target remote` takes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(_, path) => write!(f, "{}", path.display()),
            Self::Tcp(listener) => match listener.local_addr() {
                Ok(address) => write!(f, "{address}"),
                Err(_) => f.write_str("127.0.0.1"),
            },
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            // If this fails, the next listener replaces it.
            let _ = fs::remove_file(path);
        }
    }
}
