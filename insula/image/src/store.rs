//! The resident images.

use insula_driver::name::{self, Missing, Name};
use insula_driver::{CallError, Driver, Memory};
use nix::errno::Errno;

use super::{Description, FilesError, built_in};

/// Why an image cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    /// No image has that name.
    #[error(
        "there is no image '{}'; nothing was touched\n\
         {}`insula image ls` lists the images, `insula image add` adds one",
        .0.name(), .0.hint()
    )]
    Unknown(Missing),
    /// Its description cannot be parsed.
    #[error(
        "the description of the image '{name}' cannot be parsed ({source}); nothing was \
         touched\n\
         it was added by another version: remove it with `insula image rm {name}` and add it again"
    )]
    Description {
        /// Its name.
        name: String,
        /// The error.
        source: serde_json::Error,
    },
    /// The built-in image cannot be read.
    #[error("the built-in image: {0}")]
    BuiltIn(#[from] FilesError),
    /// The module failed.
    #[error("the images cannot be read: {0}; nothing was touched")]
    Call(#[from] CallError),
}

/// Why an image was not removed.
#[derive(Debug, thiserror::Error)]
pub enum RemoveError {
    /// No image has that name.
    #[error(
        "there is no image '{}'; nothing was touched\n\
         {}`insula image ls` lists the images", .0.name(), .0.hint()
    )]
    Unknown(Missing),
    /// The module failed.
    #[error("the image '{name}' could not be removed: {source}; it was left as it is")]
    Call {
        /// Its name.
        name: Name,
        /// The error.
        source: CallError,
    },
}

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

/// Opens the image of that name.
///
/// # Errors
/// [`FindError`].
pub fn open(driver: &Driver, name: &Name) -> Result<Image, FindError> {
    let memory = driver
        .open_image(&name.to_abi())
        .map_err(|error| match error.errno {
            Errno::ENOENT => FindError::Unknown(missing(driver, name)),
            _ => FindError::Call(error),
        })?;
    let description = serde_json::from_slice(&memory.description()?).map_err(|source| {
        FindError::Description {
            name: name.to_string(),
            source,
        }
    })?;
    Ok(Image {
        name: name.clone(),
        description,
        memory,
    })
}

/// The error for a name that no image has.
fn missing(driver: &Driver, name: &Name) -> Missing {
    // Without the list there is only no suggestion.
    let resident = driver.image_names().unwrap_or_default();
    let resident = resident.iter().map(name::text);
    Missing::among(name.as_str(), resident.chain([built_in::NAME.to_owned()]))
}

/// All images.
#[derive(Debug, Default)]
pub struct Listing {
    /// Images with a valid description, oldest first.
    pub images: Vec<Image>,
    /// Errors of the others: another version of the command made them.
    pub unreadable: Vec<FindError>,
}

/// Lists all images. One that is removed meanwhile is left out.
///
/// # Errors
/// [`FindError::Call`].
pub fn list(driver: &Driver) -> Result<Listing, FindError> {
    let names = driver.image_names()?;
    let parsed = names
        .iter()
        .filter_map(|name| name::text(name).parse::<Name>().ok());
    let mut listing = Listing::default();
    for name in parsed {
        match open(driver, &name) {
            Ok(image) => listing.images.push(image),
            Err(FindError::Unknown(_)) => {}
            Err(error @ FindError::Description { .. }) => listing.unreadable.push(error),
            Err(error) => return Err(error),
        }
    }
    Ok(listing)
}

/// Removes an image. Nodes that were started from it have their own copy.
///
/// # Errors
/// [`RemoveError`].
pub fn remove(driver: &Driver, name: &Name) -> Result<(), RemoveError> {
    driver
        .remove_image(&name.to_abi())
        .map_err(|source| match source.errno {
            Errno::ENOENT => RemoveError::Unknown(missing(driver, name)),
            _ => RemoveError::Call {
                name: name.clone(),
                source,
            },
        })
}
