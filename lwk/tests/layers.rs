//! The kernel's layers: a file imports only what is in its own folder or in one below, and no files
//! import each other in a circle.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The folders, and the file above them, from the lowest layer to the highest.
const LAYERS: [&str; 7] = ["hw", "model", "base", "task", "syscall", "sched", "start"];

/// Imports of each file; both are named by paths such as `task::thread`.
type Imports = BTreeMap<String, BTreeSet<String>>;

/// Reads all files below `folder`, but for tests, and the crate's roots, which are above all layers.
fn sources(folder: &Path, module: &str) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        let inner = [module, name].join("::");
        let inner = inner.trim_start_matches("::");
        if path.is_dir() {
            all.extend(sources(&path, inner));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let module = if name == "mod" { module } else { inner };
            all.insert(module.to_owned(), fs::read_to_string(&path).unwrap());
        }
    }
    all.retain(|module, _| !module.ends_with("tests") && !matches!(&**module, "lib" | "main"));
    all
}

/// Returns the code of a file: without comments and tests.
fn code(text: &str) -> String {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
    let lines = code.lines().map(|line| line.split("//").next().unwrap());
    lines.collect()
}

/// Returns the paths that begin at the start of `text`: one, or those of a group in braces.
fn paths(text: &str) -> Vec<String> {
    let end = text.find(|next: char| !next.is_alphanumeric() && !"_:".contains(next));
    let (path, rest) = text.split_at(end.unwrap_or(text.len()));
    let Some(group) = rest.strip_prefix('{') else {
        return vec![path.to_owned()];
    };
    let (mut depth, mut parts) = (1, vec![0]);
    for (at, next) in group.char_indices() {
        depth += i32::from(next == '{') - i32::from(next == '}');
        match (depth, next) {
            (0, _) => break,
            (1, ',') => parts.push(at + 1),
            _ => {}
        }
    }
    let inner = parts
        .into_iter()
        .flat_map(|at| paths(group[at..].trim_start()));
    inner.map(|inner| path.to_owned() + &inner).collect()
}

fn imports() -> Imports {
    let sources = sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), "");
    // The file is named by the first words of a path: as many as there are files for.
    let file = |path: &str| {
        let words: Vec<&str> = path.split("::").collect();
        let mut names = (1..=words.len())
            .rev()
            .map(|count| words[..count].join("::"));
        names.find(|name| sources.contains_key(name))
    };
    let imports_of = |(module, text): (&String, &String)| {
        let code = code(text);
        assert!(!code.contains(" super::"), "{module}: imports by full path");
        let starts = code
            .match_indices("crate::")
            .map(|(at, found)| at + found.len());
        let mut found: BTreeSet<String> = starts
            .flat_map(|at| paths(&code[at..]))
            .filter_map(|path| file(&path))
            .collect();
        found.remove(module);
        (module.clone(), found)
    };
    sources.iter().map(imports_of).collect()
}

fn layer(module: &str) -> usize {
    let folder = module.split("::").next();
    let found = LAYERS.iter().position(|&layer| Some(layer) == folder);
    found.unwrap_or_else(|| panic!("{module} is in no layer"))
}

#[test]
fn layers_import_only_those_below() {
    for (module, imports) in imports() {
        for import in imports {
            assert!(
                layer(&import) <= layer(&module),
                "{module} imports {import}"
            );
        }
    }
}

#[test]
fn files_do_not_import_each_other_in_a_circle() {
    let mut left = imports();
    loop {
        let is_left = |import: &String| left.contains_key(import);
        let free = |(_, imports): &(&String, &BTreeSet<String>)| !imports.iter().any(is_left);
        let free: Vec<String> = left
            .iter()
            .filter(free)
            .map(|(module, _)| module.clone())
            .collect();
        if free.is_empty() {
            break;
        }
        left.retain(|module, _| !free.contains(module));
    }
    assert!(left.is_empty(), "in a circle, or above one: {left:#?}");
}
