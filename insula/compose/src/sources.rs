//! Reading the files that a user names.

use std::io;
use std::path::{Path, PathBuf};

use insula_base::error::Error;

use super::diagnostic::Source;

/// Reads files; of a folder, those whose names end in `.toml`, sorted by name.
///
/// # Errors
/// Why one cannot be read; nothing was touched.
pub fn sources(paths: &[PathBuf]) -> Result<Vec<Source>, Error> {
    let mut sources = Vec::new();
    for path in paths {
        let files = if path.is_dir() {
            files(path).map_err(|source| failed(path, source))?
        } else {
            vec![path.clone()]
        };
        for file in files {
            sources.push(Source::read(&file).map_err(|source| failed(&file, source))?);
        }
    }
    Ok(sources)
}

fn failed(path: &Path, error: io::Error) -> Error {
    Error::new(format!("{} cannot be read", path.display()))
        .because(error)
        .untouched()
        .hint("name a file, or a folder with files whose names end in .toml, with -f")
}

fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let paths = std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path()));
    let mut files = paths.collect::<io::Result<Vec<_>>>()?;
    let is_ours = |path: &PathBuf| path.extension().is_some_and(|end| end == "toml");
    files.retain(|path| is_ours(path) && path.is_file());
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_its_files_in_order() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["b.toml", "a.toml", "a.toml~", "read.me"] {
            std::fs::write(folder.path().join(name), name).unwrap();
        }
        std::fs::create_dir(folder.path().join("c.toml")).unwrap();
        let found = sources(&[folder.path().to_owned()]).unwrap();
        let texts: Vec<_> = found.iter().map(|one| one.text.as_str()).collect();
        assert_eq!(texts, ["a.toml", "b.toml"]);
    }

    #[test]
    fn what_is_missing_is_named() {
        let error = sources(&["/nonexistent/insula.toml".into()]).unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with("/nonexistent/insula.toml cannot be read: "),
            "{text}"
        );
    }
}
