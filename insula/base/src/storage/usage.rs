//! Uses of a file or block device by the base itself.

use super::identity::Identity;
use super::medium::{Medium, loop_file};
use crate::root::Root;

const BLOCK: &str = "/sys/class/block";

/// A use of a medium by the base.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Use {
    /// The use, such as "mounted at /srv".
    pub what: String,
    /// Whether the base may write to the medium.
    pub writes: bool,
}

/// All uses of a medium, and of the layers above it.
#[must_use]
pub fn uses(root: &Root, medium: &Medium) -> Vec<Use> {
    let mut uses = mounts(root, medium);
    uses.extend(swaps(root, medium));
    uses.extend(layers(root, medium));
    uses
}

fn is_used_as(root: &Root, medium: &Medium, used: Option<Identity>) -> bool {
    used.is_some_and(|used| Medium::identified(root, used).overlaps(medium))
}

/// Mounted file systems. Some have a device number of their own, and name the device only as their
/// source (btrfs).
fn mounts(root: &Root, medium: &Medium) -> Vec<Use> {
    let text = root.text("/proc/self/mountinfo").unwrap_or_default();
    let uses = text.lines().filter_map(|line| {
        // Fields before and after the dash: proc_pid_mountinfo(5).
        let (before, after) = line.split_once(" - ")?;
        let before: Vec<_> = before.split(' ').collect();
        let [_, source, options] = after.split(' ').collect::<Vec<_>>()[..] else {
            return None;
        };
        let numbered = Identity::numbered(before.get(2)?);
        let is_it = is_used_as(root, medium, numbered) || {
            let named = source.starts_with('/');
            let named = named.then(|| Identity::of(&root.path(&unescaped(source))));
            is_used_as(root, medium, named.and_then(Result::ok))
        };
        is_it.then(|| Use {
            what: format!("mounted at {}", unescaped(before.get(4).unwrap_or(&"?"))),
            writes: !options.split(',').any(|option| option == "ro"),
        })
    });
    uses.collect()
}

fn swaps(root: &Root, medium: &Medium) -> Vec<Use> {
    let text = root.text("/proc/swaps").unwrap_or_default();
    let paths = text
        .lines()
        .skip(1)
        .filter_map(|line| line.split_whitespace().next());
    let is_it = |path: &str| {
        let used = Identity::of(&root.path(&unescaped(path)));
        is_used_as(root, medium, used.ok())
    };
    let used = paths.filter(|path| is_it(path));
    used.map(|_| Use {
        what: "swap space".into(),
        writes: true,
    })
    .collect()
}

/// Loop devices, volumes and arrays built on it.
fn layers(root: &Root, medium: &Medium) -> Vec<Use> {
    let names = root.names(BLOCK).into_iter();
    let uses = names.filter_map(|name| {
        let folder = format!("{BLOCK}/{name}");
        let is_layer = loop_file(root, &folder).is_some()
            || !root.names(&format!("{folder}/slaves")).is_empty();
        let number = root.text(&format!("{folder}/dev")).ok()?;
        let layer = || Some(Medium::identified(root, Identity::numbered(&number)?));
        (is_layer && layer()?.is_above(medium)).then(|| Use {
            what: format!("part of /dev/{name}"),
            writes: root.value(&format!("{folder}/ro")) != Some(1),
        })
    });
    uses.collect()
}

/// Decodes a path in which the kernel has written white space and backslashes in octal.
fn unescaped(text: &str) -> String {
    let mut rest = text;
    let mut whole = String::new();
    while let Some((before, after)) = rest.split_once('\\') {
        whole.push_str(before);
        let code = after
            .get(..3)
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) if code.is_ascii() => {
                whole.push(code.into());
                rest = &after[3..];
            }
            _ => {
                whole.push('\\');
                rest = after;
            }
        }
    }
    whole + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::fake::Tree;

    fn used(tree: &Tree, path: &str) -> Vec<(String, bool)> {
        let root = tree.root();
        let medium = Medium::of(&root, &root.path(path)).unwrap();
        let uses = uses(&root, &medium).into_iter();
        uses.map(|one| (one.what, one.writes)).collect()
    }

    #[test]
    fn uses_are_found() {
        let tree = Tree::new(&[
            ("/dev/one", ""),
            ("/dev/two", ""),
            ("/swap file", ""),
            ("/images/disk", ""),
            ("/images/idle", ""),
            (
                "/proc/self/mountinfo",
                "25 1 0:44 / /a\\040b rw shared:1 - btrfs /dev/one rw,space_cache\n\
                 26 1 0:45 / /c rw - erofs /dev/two ro\n\
                 27 1 0:46 / /proc rw - proc proc rw\n",
            ),
            (
                "/proc/swaps",
                "Filename\tType\tSize\tUsed\tPriority\n/swap\\040file file 1 0 -2\n",
            ),
            ("/sys/class/block/loop3/dev", "7:3\n"),
            ("/sys/class/block/loop3/ro", "0\n"),
            ("/sys/class/block/loop3/loop/backing_file", "/images/disk\n"),
            ("/sys/dev/block/7:3/loop/backing_file", "/images/disk\n"),
        ]);
        let one = |what: &str, writes| vec![(what.to_owned(), writes)];
        assert_eq!(used(&tree, "/dev/one"), one("mounted at /a b", true));
        assert_eq!(used(&tree, "/dev/two"), one("mounted at /c", false));
        assert_eq!(used(&tree, "/swap file"), one("swap space", true));
        assert_eq!(used(&tree, "/images/disk"), one("part of /dev/loop3", true));
        assert_eq!(used(&tree, "/images/idle"), []);
    }

    #[test]
    fn a_file_system_on_a_loop_device_is_on_its_file() {
        let tree = Tree::new(&[
            ("/images/disk", ""),
            ("/sys/dev/block/7:3/loop/backing_file", "/images/disk\n"),
            (
                "/proc/self/mountinfo",
                "25 1 7:3 / /m rw - ext4 /dev/loop3 rw\n",
            ),
        ]);
        let expected = [("mounted at /m".to_owned(), true)];
        assert_eq!(used(&tree, "/images/disk"), expected);
    }

    #[test]
    fn paths_are_read_as_the_kernel_writes_them() {
        for (text, path) in [
            ("/a", "/a"),
            ("/a\\040b\\134", "/a b\\"),
            ("\\", "\\"),
            ("\\9é", "\\9é"),
        ] {
            assert_eq!(unescaped(text), path);
        }
    }
}
