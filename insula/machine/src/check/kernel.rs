//! Checks of the base's kernel: version and configuration.

use std::io::Read;

use flate2::read::GzDecoder;
use insula_base::root::Root;

use super::Finding;

/// Kernel series that nodes were tested on.
const TESTED: [&str; 2] = ["6.1", "6.12"];
/// Options that the module needs, and what for.
const NEEDED: [(&str, &str); 5] = [
    ("MODULES", "to load insula.ko"),
    ("KALLSYMS", "to find functions that are not exported"),
    ("KPROBES", "to find functions that are not exported"),
    ("HOTPLUG_CPU", "to take cores offline"),
    ("CONTIG_ALLOC", "to allocate contiguous memory"),
];
/// A configuration is about 300 KiB; a larger file is none.
const CONFIGURATION_MAX: u64 = 8 << 20;

pub(super) fn version(root: &Root) -> Finding {
    let Some(release) = release(root) else {
        return Finding::bad(
            "kernel",
            "its release cannot be read",
            "mount proc at /proc",
        );
    };
    let mut numbers = release
        .split(['.', '-', '+'])
        .map_while(|part| part.parse::<u32>().ok());
    let series = numbers.next().zip(numbers.next());
    match series {
        Some((major, minor)) if TESTED.contains(&format!("{major}.{minor}").as_str()) => {
            Finding::ok("kernel", release)
        }
        Some(series) if series >= (6, 1) => Finding::untested(
            "kernel",
            release,
            format!(
                "tested are {}: boot one of these for a tested setup",
                TESTED.join(", ")
            ),
        ),
        _ => Finding::bad(
            "kernel",
            release,
            format!("boot Linux {} or newer", TESTED[0]),
        ),
    }
}

fn release(root: &Root) -> Option<String> {
    root.text("/proc/sys/kernel/osrelease")
        .ok()
        .filter(|release| !release.is_empty())
}

pub(super) fn configuration(root: &Root) -> Finding {
    const SUBJECT: &str = "kernel configuration";
    let Some(configuration) = read_configuration(root) else {
        return Finding::untested(
            SUBJECT,
            "neither /boot/config-<release> nor /proc/config.gz can be read",
            "the module reports on loading if something is missing",
        );
    };
    let has = |option: &str| {
        configuration
            .lines()
            .any(|line| line.trim_end() == format!("CONFIG_{option}=y"))
    };
    let missing: Vec<_> = NEEDED.iter().filter(|(option, _)| !has(option)).collect();
    if missing.is_empty() {
        let names = NEEDED.map(|(option, _)| option);
        return Finding::ok(SUBJECT, format!("has {}", names.join(", ")));
    }
    let missing = missing
        .iter()
        .map(|(option, why)| format!("{option} ({why})"));
    Finding::bad(
        SUBJECT,
        format!("lacks {}", missing.collect::<Vec<_>>().join(", ")),
        "boot a distribution's kernel, or build one with these options",
    )
}

fn read_configuration(root: &Root) -> Option<String> {
    let release = release(root)?;
    let installed = root.text(&format!("/boot/config-{release}")).ok();
    installed.or_else(|| {
        let packed = std::fs::File::open(root.path("/proc/config.gz")).ok()?;
        let mut text = String::new();
        GzDecoder::new(packed)
            .take(CONFIGURATION_MAX)
            .read_to_string(&mut text)
            .ok()?;
        Some(text)
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use insula_base::root::fake::Tree;

    use super::super::Verdict;
    use super::*;

    fn of(release: &str) -> Tree {
        Tree::new(&[("/proc/sys/kernel/osrelease", release)])
    }

    #[test]
    fn versions() {
        let verdict = |release| version(&of(release).root()).verdict;
        assert_eq!(verdict("6.1.0-56-cloud-amd64"), Verdict::Ok);
        assert_eq!(verdict("6.12.117+deb12-cloud-amd64"), Verdict::Ok);
        assert_eq!(verdict("6.10.3"), Verdict::Untested);
        assert_eq!(verdict("7.0.0"), Verdict::Untested);
        assert_eq!(verdict("6.19-rc1"), Verdict::Untested);
        assert_eq!(verdict("5.10.0-30-amd64"), Verdict::Bad);
        assert_eq!(verdict(""), Verdict::Bad);
    }

    #[test]
    fn configuration_is_found_in_proc_as_well() {
        let tree = of("6.1.0");
        assert_eq!(configuration(&tree.root()).verdict, Verdict::Untested);
        let path = tree.root().path("/proc/config.gz");
        let file = std::fs::File::create(path).unwrap();
        let mut packer = flate2::write::GzEncoder::new(file, flate2::Compression::fast());
        for (option, _) in NEEDED {
            writeln!(packer, "CONFIG_{option}=y").unwrap();
        }
        packer.finish().unwrap();
        assert_eq!(configuration(&tree.root()).verdict, Verdict::Ok);
        tree.add(&[(
            "/boot/config-6.1.0",
            "CONFIG_MODULES=m\nCONFIG_KALLSYMS=y\n",
        )]);
        let finding = configuration(&tree.root());
        assert_eq!(finding.verdict, Verdict::Bad);
        assert!(finding.found.contains("MODULES") && !finding.found.contains("KALLSYMS"));
    }
}
