//! Making an image resident.

use std::borrow::Cow;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use insula_abi as abi;
use insula_base::error::Error;
use insula_base::units::Size;
use insula_driver::name::Name;
use insula_driver::{Driver, DriverError, Mapping, Memory};
use kimage::ImageError;
use kimage::log::LogLayout;
use nix::errno::Errno;

use super::ResidentLayout;
use super::files::{invalid_kernel, open_initrd, unreadable_initrd};
use super::{Content, Description, FileRecord, Files, KernelFile, LogSource, Payload, built_in};
use crate::digest::sha256;

/// An image to make resident.
#[derive(Clone, Debug)]
pub struct AddRequest {
    /// Its name.
    pub name: Name,
    /// Its files.
    pub files: Files,
    /// Kernel command line of every node of this image.
    pub append: String,
    /// Form of the kernel to keep.
    pub payload: Payload,
    /// The project that adds it, if one does.
    pub project: Option<Name>,
}

/// An initrd in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Initrd {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// The path that is recorded as its file.
    pub path: PathBuf,
}

impl Initrd {
    /// Reads the initrd of these files, if they name one.
    ///
    /// # Errors
    /// Of the [kind](insula_base::error::Kind) `Initrd`.
    pub fn read(files: &Files) -> Result<Option<Self>, Error> {
        let Some(path) = &files.initrd else {
            return Ok(None);
        };
        open_initrd(path)?;
        let read = || {
            Ok(Self {
                bytes: std::fs::read(path)?,
                path: std::path::absolute(path)?,
            })
        };
        read()
            .map(Some)
            .map_err(|source| unreadable_initrd(path, source))
    }
}

/// Reads and checks the files, and registers the image.
///
/// # Errors
/// Of the [kind](insula_base::error::Kind) `Kernel` or `Initrd`, or another; nothing is left behind.
pub fn add(driver: &Driver, request: &AddRequest) -> Result<Description, Error> {
    check_name(driver, &request.name)?;
    let prepared = Prepared::new(request, Initrd::read(&request.files)?)?;
    prepared.add(driver)?;
    Ok(prepared.description)
}

/// The description of the built-in image, as it would be if it were resident.
///
/// # Errors
/// Of the [kind](insula_base::error::Kind) `Kernel`.
pub fn built_in_description(name: &Name) -> Result<Description, Error> {
    let request = AddRequest {
        name: name.clone(),
        files: Files {
            kernel: built_in::path(),
            initrd: None,
        },
        append: String::new(),
        payload: Payload::Compressed,
        project: None,
    };
    Prepared::new(&request, None).map(|prepared| prepared.description)
}

/// Fails if there is an image of that name.
pub(super) fn check_name(driver: &Driver, name: &Name) -> Result<(), Error> {
    let names = driver.image_names();
    let names = names.map_err(|error| driver_failed(name, error.into()))?;
    match names.contains(&name.to_abi()) {
        true => Err(name_taken(name)),
        false => Ok(()),
    }
}

/// An image whose files were read and checked. Nothing of it is resident yet.
#[derive(Debug)]
pub struct Prepared {
    /// Its name.
    pub name: Name,
    /// Its description.
    pub description: Description,
    /// The same as JSON.
    text: Vec<u8>,
    kernel: Vec<u8>,
    initrd: Vec<u8>,
}

impl Prepared {
    /// Reads and checks the kernel. `initrd` is used, whatever `request` names.
    ///
    /// # Errors
    /// Of the [kind](insula_base::error::Kind) `Kernel`, or when the description is too long.
    pub fn new(request: &AddRequest, initrd: Option<Initrd>) -> Result<Self, Error> {
        let kernel = KernelFile::read(&request.files.kernel)?;
        let (bytes, loadable) = kernel.payload(request.payload)?;
        let initrd_size = initrd.as_ref().map_or(0, |one| one.bytes.len() as u64);
        let description = Description {
            log: log_source(&kernel)?,
            payload: request.payload,
            initrd_size,
            append: request.append.clone(),
            added_unix_s: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |now| now.as_secs()),
            kernel: record(kernel.path.clone(), &kernel.bytes),
            initrd: initrd
                .as_ref()
                .map(|one| record(one.path.clone(), &one.bytes)),
            layout: ResidentLayout::plan(&loadable, initrd_size),
            loadable,
            project: request.project.as_ref().map(Name::to_string),
        };
        let unpacked = match bytes {
            Cow::Owned(unpacked) => Some(unpacked),
            Cow::Borrowed(_) => None,
        };
        Ok(Self {
            name: request.name.clone(),
            text: encode(&request.name, &description)?,
            description,
            kernel: unpacked.unwrap_or(kernel.bytes),
            initrd: initrd.map_or_else(Vec::new, |one| one.bytes),
        })
    }

    /// Makes it resident.
    ///
    /// # Errors
    /// When its name is in use, memory is short or the module fails; nothing is left behind.
    pub fn add(&self, driver: &Driver) -> Result<(), Error> {
        let memory = self.fill(driver)?;
        driver
            .add_image(&self.name.to_abi(), &self.text, &memory)
            .map_err(|error| driver_failed(&self.name, error.into()))
    }

    /// Makes it resident and replaces the image of its name atomically. Nodes that were started
    /// from the old one have their own copy.
    ///
    /// # Errors
    /// When memory is short or the module fails; the existing image is kept.
    pub fn replace(&self, driver: &Driver) -> Result<(), Error> {
        let memory = self.fill(driver)?;
        driver
            .replace_image(&self.name.to_abi(), &self.text, &memory)
            .map_err(|error| driver_failed(&self.name, error.into()))
    }

    /// Memory with its bytes, which is freed with the descriptor until it has a name.
    fn fill(&self, driver: &Driver) -> Result<Memory, Error> {
        let failed = |source: DriverError| driver_failed(&self.name, source);
        let memory = allocate(driver, &self.name, self.description.layout.size)?;
        let mut mapping = memory.map().map_err(failed)?;
        fill(&mut mapping, &self.description, &self.kernel, &self.initrd).map_err(failed)?;
        Ok(memory)
    }
}

impl Content {
    /// The content of an image to be added, with that initrd; its kernel is read, but not checked.
    ///
    /// # Errors
    /// Of the [kind](insula_base::error::Kind) `Kernel`.
    pub fn read(request: &AddRequest, initrd: Option<&Initrd>) -> Result<Self, Error> {
        let kernel = KernelFile::read(&request.files.kernel)?;
        Ok(Self {
            kernel_sha256: sha256(&kernel.bytes),
            initrd_sha256: initrd.map(|one| sha256(&one.bytes)),
            payload: request.payload,
            append: request.append.clone(),
        })
    }
}

/// The error for an image that the module has not taken.
pub(super) fn driver_failed(name: &Name, source: DriverError) -> Error {
    match source.errno() {
        Some(Errno::EEXIST) => name_taken(name),
        _ => Error::new(format!("the image '{name}' could not be added"))
            .because(source)
            .nothing_kept(),
    }
}

fn name_taken(name: &Name) -> Error {
    Error::new(format!("there already is an image '{name}'"))
        .unchanged()
        .hint(format!(
            "use another name, or remove it with `insula image rm {name}`"
        ))
}

fn no_memory(name: &Name, size: Size) -> Error {
    let what = format!("{size} of memory could not be allocated for the image '{name}'");
    Error::new(what)
        .nothing_kept()
        .hint("free some: `insula machine info` shows what nodes and images use")
}

/// The way to read the kernel's log, from its own symbols and types.
///
/// # Errors
/// Of the [kind](insula_base::error::Kind) `Kernel` when its content is damaged: such a kernel could not unpack itself either.
/// An unknown kind of kernel or compression is no error.
fn log_source(kernel: &KernelFile) -> Result<LogSource, Error> {
    let elf = match kimage::vmlinux(&kernel.bytes) {
        Ok(elf) => elf,
        Err(source @ ImageError::Unpack { .. }) => {
            return Err(invalid_kernel(&kernel.path, source));
        }
        Err(error) => return Ok(LogSource::Unreadable(error.to_string())),
    };
    Ok(match LogLayout::from_vmlinux(&elf) {
        Ok(layout) => LogSource::Layout(Box::new(layout)),
        Err(error) => LogSource::Unreadable(error.to_string()),
    })
}

fn record(path: std::path::PathBuf, bytes: &[u8]) -> FileRecord {
    FileRecord {
        path,
        size: bytes.len() as u64,
        sha256: sha256(bytes),
    }
}

/// A description as the module keeps it.
///
/// # Errors
/// When it is too long.
pub(super) fn encode(name: &Name, description: &Description) -> Result<Vec<u8>, Error> {
    // Serialising to memory fails only for maps with non-string keys: there are none.
    let text = serde_json::to_vec(description).unwrap_or_default();
    if text.len() > abi::DESCRIPTION_MAX {
        let what = format!(
            "the description of the image '{name}' has {} bytes, the module allows {}",
            text.len(),
            abi::DESCRIPTION_MAX,
        );
        return Err(Error::new(what).nothing_kept().hint("shorten --append"));
    }
    Ok(text)
}

/// Memory of at least that size for an image.
///
/// # Errors
/// When memory is short, or the module's.
pub(super) fn allocate(driver: &Driver, name: &Name, size: u64) -> Result<Memory, Error> {
    let size = size.next_multiple_of(abi::GRANULE);
    let request = abi::Request {
        size,
        min_phys: 0,
        max_phys: 0,
        chunk_max: 0,
        numa_node: abi::NUMA_ANY,
        flags: 0,
    };
    let allocated = driver
        .create_memory()
        .and_then(|memory| memory.grow(&request).map(|()| memory));
    allocated.map_err(|error| match error.errno {
        Errno::ENOMEM => no_memory(name, Size(size)),
        _ => driver_failed(name, error.into()),
    })
}

fn fill(
    mapping: &mut Mapping,
    description: &Description,
    kernel: &[u8],
    initrd: &[u8],
) -> Result<(), DriverError> {
    let segments = &description.loadable.segments;
    for (segment, &offset) in segments.iter().zip(&description.layout.segments) {
        mapping.write(offset, super::bootable::segment_bytes(kernel, segment)?)?;
    }
    mapping.write(description.layout.initrd, initrd)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_recorded_by_digest() {
        let record = record("/k".into(), b"abc");
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!((record.size, record.sha256.as_str()), (3, expected));
    }

    #[test]
    fn an_unknown_kernel_has_an_unreadable_log() {
        let source = log_source(&kernel(b"nothing"));
        assert!(matches!(source, Ok(LogSource::Unreadable(_))));
    }

    fn kernel(bytes: &[u8]) -> KernelFile {
        KernelFile {
            path: "/k".into(),
            bytes: bytes.to_vec(),
            modified_ns: 0,
        }
    }

    /// A bzImage with nothing but its payload.
    fn bzimage(packed: &[u8]) -> Vec<u8> {
        const PROTECTED_MODE: usize = 0x400;
        let mut file = vec![0; 2 * PROTECTED_MODE];
        let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
        put(0x1f1, &[1]);
        put(0x1f4, &(PROTECTED_MODE as u32 / 16).to_le_bytes());
        put(0x1fe, &[0x55, 0xaa, 0xeb, 0x6a]);
        put(0x202, b"HdrS");
        put(0x206, &0x20f_u16.to_le_bytes());
        put(0x24c, &(packed.len() as u32).to_le_bytes());
        put(PROTECTED_MODE, packed);
        file
    }

    #[test]
    fn a_kernel_that_cannot_unpack_itself_is_refused() {
        // A zstd frame with one raw block of four bytes, and the unpacked size.
        let whole = *b"\x28\xb5\x2f\xfd\x20\x04\x21\x00\x00abcd\x04\x00\x00\x00";
        let source = log_source(&kernel(&bzimage(&whole)));
        assert!(
            matches!(source, Ok(LogSource::Unreadable(_))),
            "no ELF file: {source:?}"
        );
        let mut damaged = whole;
        damaged[6] ^= 6;
        let error = log_source(&kernel(&bzimage(&damaged))).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("zstd data cannot be decompressed"),
            "{error}"
        );
    }

    #[test]
    fn a_name_in_use_is_reported_however_it_was_found() {
        let name: Name = "web".parse().unwrap();
        let call = insula_driver::CallError {
            call: "INSULA_IMAGE_ADD",
            errno: Errno::EEXIST,
        };
        let error = driver_failed(&name, call.into());
        assert_eq!(error.what, "there already is an image 'web'");
        assert!(error.hint.contains("`insula image rm web`"));
    }
}
