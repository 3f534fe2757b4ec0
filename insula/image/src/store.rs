//! The resident images.

use insula_base::error::{Error, Kind};
use insula_driver::name::{self, Missing, Name};
use insula_driver::{CallError, Driver, Memory};
use nix::errno::Errno;

use super::{Description, Snapshot, SnapshotImage, built_in};

/// A resident image.
#[derive(Debug)]
pub struct Image {
    /// Its name.
    pub name: Name,
    /// Its description.
    pub description: Description,
    /// Its memory object.
    pub memory: Memory,
}

/// A resident image of either kind.
#[derive(Debug)]
pub enum Opened {
    /// A kernel, to be booted.
    Kernel(Image),
    /// A node that has booted.
    Snapshot(SnapshotImage),
}

/// Opens the image of that name, which is a kernel.
///
/// # Errors
/// [`Kind::NoImage`], or when its description cannot be read, or it is a snapshot.
pub fn open(driver: &Driver, name: &Name) -> Result<Image, Error> {
    match open_any(driver, name)? {
        Opened::Kernel(image) => Ok(image),
        Opened::Snapshot(_) => Err(is_snapshot(name)),
    }
}

/// Opens the image of that name.
///
/// # Errors
/// [`Kind::NoImage`], or when its description cannot be read.
pub fn open_any(driver: &Driver, name: &Name) -> Result<Opened, Error> {
    let (memory, text) = read(driver, name)?;
    opened(name, memory, &text)
}

fn opened(name: &Name, memory: Memory, text: &[u8]) -> Result<Opened, Error> {
    let name = name.clone();
    if let Ok(description) = serde_json::from_slice::<Snapshot>(text) {
        return Ok(Opened::Snapshot(SnapshotImage {
            name,
            description,
            memory,
        }));
    }
    let description = parse(&name, text)?;
    Ok(Opened::Kernel(Image {
        name,
        description,
        memory,
    }))
}

fn is_snapshot(name: &Name) -> Error {
    Error::new(format!("the image '{name}' is a snapshot"))
        .untouched()
        .hint(format!(
            "`insula run --image {name}` starts a copy of its node"
        ))
}

/// An image's memory, and its description as text.
fn read(driver: &Driver, name: &Name) -> Result<(Memory, Vec<u8>), Error> {
    let opened = driver.open_image(&name.to_abi());
    let memory = opened.map_err(|error| match error.errno {
        Errno::ENOENT => missing(driver, name, ", `insula image add` adds one"),
        _ => failed(error),
    })?;
    let text = memory.description().map_err(failed)?;
    Ok((memory, text))
}

fn parse(name: &Name, text: &[u8]) -> Result<Description, Error> {
    serde_json::from_slice(text).map_err(|error| {
        let what = format!("the description of the image '{name}' cannot be parsed ({error})");
        Error::new(what).untouched().hint(format!(
            "it was added by another version: remove it with `insula image rm {name}` and add it \
             again"
        ))
    })
}

fn failed(source: CallError) -> Error {
    Error::new("the images cannot be read")
        .because(source)
        .untouched()
}

/// The error for a name that no image has.
fn missing(driver: &Driver, name: &Name, more: &str) -> Error {
    // Without the list there is only no suggestion.
    let resident = driver.image_names().unwrap_or_default();
    let resident = resident.iter().map(name::text);
    let missing = Missing::among(name.as_str(), resident.chain([built_in::NAME.to_owned()]));
    Error::of(Kind::NoImage, format!("there is no image '{name}'"))
        .untouched()
        .hint(format!(
            "{}`insula image ls` lists the images{more}",
            missing.hint()
        ))
}

/// All images.
#[derive(Debug, Default)]
pub struct Listing {
    /// Images with a valid description, oldest first.
    pub images: Vec<Image>,
    /// Snapshots, oldest first.
    pub snapshots: Vec<SnapshotImage>,
    /// Names and errors of the others: another version of the command made them.
    pub unreadable: Vec<(Name, Error)>,
}

/// Lists all images. One that is removed meanwhile is left out.
///
/// # Errors
/// The module's.
pub fn list(driver: &Driver) -> Result<Listing, Error> {
    let names = driver.image_names().map_err(failed)?;
    let parsed = names
        .iter()
        .filter_map(|name| name::text(name).parse::<Name>().ok());
    let mut listing = Listing::default();
    for name in parsed {
        let (memory, text) = match read(driver, &name) {
            Err(error) if error.kind == Kind::NoImage => continue,
            read => read?,
        };
        match opened(&name, memory, &text) {
            Ok(Opened::Kernel(image)) => listing.images.push(image),
            Ok(Opened::Snapshot(snapshot)) => listing.snapshots.push(snapshot),
            Err(error) => listing.unreadable.push((name, error)),
        }
    }
    Ok(listing)
}

/// Removes an image. Nodes that were started from it have their own copy.
///
/// # Errors
/// [`Kind::NoImage`], or the module's.
pub fn remove(driver: &Driver, name: &Name) -> Result<(), Error> {
    let removed = driver.remove_image(&name.to_abi());
    removed.map_err(|error| match error.errno {
        Errno::ENOENT => missing(driver, name, ""),
        _ => Error::new(format!("the image '{name}' could not be removed"))
            .because(error)
            .unchanged(),
    })
}
