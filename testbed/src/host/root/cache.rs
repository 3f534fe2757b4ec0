//! Files that take long to make, cached in the build folder as long as their recipes are the same.

use std::fs;
use std::path::{Path, PathBuf};

use super::{RootError, at};
use crate::host::project;

/// File `name`, made if there is none of this recipe. `make` gets a temporary folder to work in,
/// and returns the path of the file in it.
pub(super) fn cached(
    name: &str,
    recipe: &str,
    make: impl FnOnce(&Path) -> Result<PathBuf, RootError>,
) -> Result<PathBuf, RootError> {
    let folder = project::build().join("root");
    let file = folder.join(name);
    let note = file.with_extension("recipe");
    if file.exists() && fs::read_to_string(&note).is_ok_and(|made| made == recipe) {
        return Ok(file);
    }
    fs::create_dir_all(&folder).map_err(at(&folder))?;
    let work = tempfile::tempdir_in(&folder).map_err(at(&folder))?;
    let made = make(work.path())?;
    fs::rename(made, &file).map_err(at(&file))?;
    fs::write(&note, recipe).map_err(at(&note))?;
    Ok(file)
}
