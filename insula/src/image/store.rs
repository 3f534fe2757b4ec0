//! The images that are resident.

use nix::errno::Errno;

use super::{Description, FilesError, built_in};
use crate::driver::{CallError, Driver, Memory};
use crate::name::{self, Missing, Name};

/// Why an image cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    /// There is none of that name.
    #[error(
        "there is no image '{}'; nothing was touched\n\
         {}`insula image ls` lists those there are, `insula image add` makes one",
        .0.name(), .0.hint()
    )]
    Unknown(Missing),
    /// What is kept beside it is not ours.
    #[error(
        "the description of the image '{name}' cannot be understood ({source}); nothing was \
         touched\n\
         it was added by another version: remove it with `insula image rm {name}` and add it anew"
    )]
    Description {
        /// Its name.
        name: String,
        /// Why.
        source: serde_json::Error,
    },
    /// The built-in image cannot be had.
    #[error("the built-in image: {0}")]
    BuiltIn(#[from] FilesError),
    /// The module failed.
    #[error("the images cannot be read: {0}; nothing was touched")]
    Call(#[from] CallError),
}

/// Why an image was not removed.
#[derive(Debug, thiserror::Error)]
pub enum RemoveError {
    /// There is none of that name.
    #[error(
        "there is no image '{}'; nothing was touched\n\
         {}`insula image ls` lists those there are", .0.name(), .0.hint()
    )]
    Unknown(Missing),
    /// The module failed.
    #[error("the image '{name}' could not be removed: {source}; it was left as it is")]
    Call {
        /// Its name.
        name: Name,
        /// How.
        source: CallError,
    },
}

/// A resident image.
#[derive(Debug)]
pub struct Image {
    /// Its name.
    pub name: Name,
    /// What is known of it.
    pub description: Description,
    /// Its bytes.
    pub memory: Memory,
}

/// The image of that name.
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

/// A name that no image has.
fn missing(driver: &Driver, name: &Name) -> Missing {
    // Without them there is only nothing to suggest.
    let resident = driver.image_names().unwrap_or_default();
    let resident = resident.iter().map(name::text);
    Missing::among(name.as_str(), resident.chain([built_in::NAME.to_owned()]))
}

/// All images there are.
#[derive(Debug, Default)]
pub struct Listing {
    /// Those that can be understood, oldest first.
    pub images: Vec<Image>,
    /// Why each of the others cannot: another version of the command made it.
    pub unreadable: Vec<FindError>,
}

/// All images. One that goes meanwhile is left out.
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

/// Forgets an image. Nodes that were started from it have their own copy.
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
