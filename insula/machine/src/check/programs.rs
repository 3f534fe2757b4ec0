//! Check of the programs that nodes' devices need. A node without such devices needs none.

use insula_base::root::Root;
use insula_node::attachment::VIRTIOFSD_PLACES;

use super::Finding;

const SUBJECT: &str = "programs";
/// Where programs are looked for.
const FOLDERS: [&str; 6] = [
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
];

/// A program, what nodes have by it, and Debian's package.
struct Program {
    name: &'static str,
    brings: &'static str,
    package: &'static str,
    /// Where else it may lie.
    places: &'static [&'static str],
}

const PROGRAMS: [Program; 4] = [
    Program {
        name: "ip",
        brings: "a network",
        package: "iproute2",
        places: &[],
    },
    Program {
        name: "nft",
        brings: "other hosts than the base and nodes",
        package: "nftables",
        places: &[],
    },
    Program {
        name: "qemu-storage-daemon",
        brings: "disks",
        package: "qemu-system-common",
        places: &[],
    },
    Program {
        name: "virtiofsd",
        brings: "folders of the base",
        package: "virtiofsd, or qemu-system-common on Debian 12",
        places: &VIRTIOFSD_PLACES,
    },
];

pub(super) fn programs(root: &Root) -> Finding {
    let missing: Vec<_> = PROGRAMS.iter().filter(|one| !is_there(root, one)).collect();
    if missing.is_empty() {
        let names = PROGRAMS.map(|one| one.name);
        return Finding::ok(SUBJECT, format!("has {}", names.join(", ")));
    }
    let lacks = missing.iter().map(|one| one.name);
    let hints = missing.iter().map(|one| {
        let Program {
            brings, package, ..
        } = one;
        format!("nodes have {brings} with {package}")
    });
    Finding::limited(
        SUBJECT,
        format!("lacks {}", lacks.collect::<Vec<_>>().join(", ")),
        hints.collect::<Vec<_>>().join("; "),
    )
}

fn is_there(root: &Root, program: &Program) -> bool {
    let in_folder = |folder: &str| root.exists(&format!("{folder}/{}", program.name));
    FOLDERS.iter().any(|folder| in_folder(folder))
        || program.places.iter().any(|place| root.exists(place))
}

#[cfg(test)]
mod tests {
    use insula_base::root::fake::Tree;

    use super::super::Verdict;
    use super::*;

    #[test]
    fn what_is_missing_is_told_with_its_package() {
        let tree = Tree::new(&[
            ("/usr/sbin/ip", ""),
            ("/usr/lib/qemu/virtiofsd", ""),
            ("/usr/bin/qemu-storage-daemon", ""),
        ]);
        let found = programs(&tree.root());
        assert_eq!(found.verdict, Verdict::Limited);
        assert_eq!(found.found, "lacks nft");
        assert!(found.hint.unwrap().contains("nftables"));
        tree.add(&[("/usr/sbin/nft", "")]);
        assert_eq!(programs(&tree.root()).verdict, Verdict::Ok);
    }
}
