//! Paths below mount points.

use alloc::vec::Vec;

/// Returns an absolute path without empty names, `.`, and names that a `..` follows: as if no
/// directory were a symbolic link. A slash at its end stays.
#[must_use]
pub fn normalized(path: &[u8]) -> Vec<u8> {
    let mut names: Vec<&[u8]> = Vec::new();
    for name in path.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => drop(names.pop()),
            name => names.push(name),
        }
    }
    let mut normal: Vec<u8> = names
        .iter()
        .flat_map(|name| [b"/", *name].concat())
        .collect();
    if normal.is_empty() || path.ends_with(b"/") {
        normal.push(b'/');
    }
    normal
}

/// Returns what of a path lies below a mount point, without a slash in front; `None` if it lies
/// elsewhere.
#[must_use]
pub fn below<'a>(point: &[u8], path: &'a [u8]) -> Option<&'a [u8]> {
    match path.strip_prefix(point)? {
        [] => Some(b""),
        [b'/', rest @ ..] => Some(rest),
        _ => None,
    }
}

/// Returns a mount point as it is compared: absolute, without a slash at its end; `None` if it is none,
/// or the root.
#[must_use]
pub fn mount_point(path: &[u8]) -> Option<Vec<u8>> {
    if !path.starts_with(b"/") {
        return None;
    }
    let mut normal = normalized(path);
    if normal.ends_with(b"/") {
        normal.pop();
    }
    (!normal.is_empty()).then_some(normal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_normalized() {
        for (path, expected) in [
            ("/", "/"),
            ("//a//b/", "/a/b/"),
            ("/a/./b", "/a/b"),
            ("/a/../b/c/..", "/b"),
            ("/../..", "/"),
            ("/a/..", "/"),
        ] {
            assert_eq!(normalized(path.as_bytes()), expected.as_bytes(), "{path}");
        }
    }

    #[test]
    fn only_what_is_below_a_point_is_found() {
        let found = |path: &'static str| below(b"/data", path.as_bytes());
        assert_eq!(found("/data"), Some(&b""[..]));
        assert_eq!(found("/data/"), Some(&b""[..]));
        assert_eq!(found("/data/a/b"), Some(&b"a/b"[..]));
        assert_eq!(found("/database"), None);
        assert_eq!(found("/dat"), None);
    }

    #[test]
    fn the_root_and_relative_paths_are_no_mount_points() {
        assert_eq!(mount_point(b"/"), None);
        assert_eq!(mount_point(b"data"), None);
        assert_eq!(mount_point(b""), None);
        assert_eq!(mount_point(b"/data/"), Some(b"/data".to_vec()));
        assert_eq!(mount_point(b"/a/../data"), Some(b"/data".to_vec()));
    }
}
