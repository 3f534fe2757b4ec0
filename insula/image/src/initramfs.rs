//! Initial file systems: cpio archives in the "newc" format that the kernel unpacks (kernel:
//! Documentation/driver-api/early-userspace/buffer-format.rst).

use std::io;

use cpio::newc::{Builder, ModeFileType, trailer};

/// Alignment of an archive's end, in bytes; the kernel requires 4, disks more.
const ALIGNMENT_BYTES: usize = 512;

/// An archive under construction. All entries belong to root.
#[derive(Default)]
pub struct Initramfs {
    bytes: Vec<u8>,
    entries: u32,
}

impl Initramfs {
    /// Adds a directory. Its parents must have been added.
    ///
    /// # Errors
    /// When the name is too long for the format.
    pub fn directory(self, name: &str) -> io::Result<Self> {
        self.entry(name, ModeFileType::Directory, 0o755, &[])
    }

    /// Adds an executable file.
    ///
    /// # Errors
    /// When its name or content is too long for the format.
    pub fn program(self, name: &str, content: &[u8]) -> io::Result<Self> {
        self.entry(name, ModeFileType::Regular, 0o755, content)
    }

    /// Adds a regular file.
    ///
    /// # Errors
    /// When its name or content is too long for the format.
    pub fn file(self, name: &str, content: &[u8]) -> io::Result<Self> {
        self.entry(name, ModeFileType::Regular, 0o644, content)
    }

    /// Adds a symbolic link.
    ///
    /// # Errors
    /// When its name or content is too long for the format.
    pub fn link(self, name: &str, target: &[u8]) -> io::Result<Self> {
        self.entry(name, ModeFileType::Symlink, 0o777, target)
    }

    /// Adds a character device. Init may need some before it can mount `/dev`.
    ///
    /// # Errors
    /// When its name is too long for the format.
    pub fn device(mut self, name: &str, major: u32, minor: u32) -> io::Result<Self> {
        let builder = self.builder(name, ModeFileType::Char, 0o600);
        let writer = builder
            .rdev_major(major)
            .rdev_minor(minor)
            .write(self.bytes, 0);
        self.bytes = writer.finish()?;
        Ok(self)
    }

    /// Completes the archive and returns its bytes.
    ///
    /// # Errors
    /// None in practice: it is written to memory.
    pub fn finish(self) -> io::Result<Vec<u8>> {
        let mut bytes = trailer(self.bytes)?;
        bytes.resize(bytes.len().next_multiple_of(ALIGNMENT_BYTES), 0);
        Ok(bytes)
    }

    fn entry(
        mut self,
        name: &str,
        kind: ModeFileType,
        mode: u32,
        content: &[u8],
    ) -> io::Result<Self> {
        let size = u32::try_from(content.len()).map_err(io::Error::other)?;
        let builder = self.builder(name, kind, mode);
        let mut writer = builder.write(self.bytes, size);
        io::Write::write_all(&mut writer, content)?;
        self.bytes = writer.finish()?;
        Ok(self)
    }

    fn builder(&mut self, name: &str, kind: ModeFileType, mode: u32) -> Builder {
        self.entries += 1;
        Builder::new(name)
            .ino(self.entries)
            .mode(mode)
            .nlink(1)
            .set_mode_file_type(kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archive_reads_back() {
        let archive = Initramfs::default();
        let archive = archive
            .directory("bin")
            .unwrap()
            .program("bin/a", b"run me")
            .unwrap();
        let bytes = archive.file("b", b"").unwrap().finish().unwrap();
        assert_eq!(bytes.len() % ALIGNMENT_BYTES, 0);

        let mut rest = bytes.as_slice();
        let mut seen = Vec::new();
        loop {
            let reader = cpio::newc::Reader::new(rest).unwrap();
            if reader.entry().is_trailer() {
                break;
            }
            let (name, mode) = (reader.entry().name().to_owned(), reader.entry().mode());
            let mut content = Vec::new();
            rest = reader.to_writer(&mut content).unwrap();
            seen.push((name, mode, content));
        }
        let expected = [
            ("bin".to_owned(), 0o040_755, Vec::new()),
            ("bin/a".to_owned(), 0o100_755, b"run me".to_vec()),
            ("b".to_owned(), 0o100_644, Vec::new()),
        ];
        assert_eq!(seen, expected);
    }
}
