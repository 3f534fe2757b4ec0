//! Checks of the module, and of what could prevent loading it.

use insula_base::error::{Error, Kind};
use insula_base::lockdown;
use insula_base::root::Root;

use super::Finding;

pub(super) fn module(root: &Root, opened: &Result<(), Error>) -> Finding {
    let error = match opened {
        Ok(()) => {
            let found = format!("loaded, revision {}", insula_abi::REVISION);
            return Finding::ok("module", found);
        }
        Err(error) => error,
    };
    match error.kind {
        Kind::NoModule => not_loaded(root),
        Kind::OtherRevision(module) => Finding::bad(
            "module",
            format!(
                "loaded, revision {}; this command needs revision {}",
                module.map_or_else(|| "unknown".into(), |revision| revision.to_string()),
                insula_abi::REVISION,
            ),
            "install module and command from the same version, then `sudo rmmod insula` and \
             `sudo modprobe insula`",
        ),
        Kind::NoPrivilege => Finding::untested(
            "module",
            "loaded, but this user may not open it",
            "run the same command as root: `sudo insula machine check`",
        ),
        _ => Finding::bad(
            "module",
            error.to_string(),
            "look at the kernel's log: `sudo dmesg | grep insula`",
        ),
    }
}

fn not_loaded(root: &Root) -> Finding {
    let release = root.text("/proc/sys/kernel/osrelease").unwrap_or_default();
    if root
        .text("/proc/sys/kernel/modules_disabled")
        .is_ok_and(|text| text == "1")
    {
        return Finding::bad(
            "module",
            "not loaded, and loading of modules is disabled until the next boot",
            "reboot and load it before kernel.modules_disabled is set",
        );
    }
    let known = root.text(&format!("/lib/modules/{release}/modules.dep"));
    if known.is_ok_and(|list| list.lines().any(is_ours)) {
        return Finding::ok(
            "module",
            "installed, not loaded: `sudo modprobe insula` loads it",
        );
    }
    Finding::bad(
        "module",
        format!("neither loaded nor installed for {release}"),
        format!(
            "build it: install linux-headers-{release}, then `make -C kmod` and \
             `sudo insmod kmod/insula.ko`"
        ),
    )
}

/// Whether a line of modules.dep is about insula.ko, packed or not.
fn is_ours(line: &str) -> bool {
    let path = line.split(':').next().unwrap_or_default();
    let file = path.rsplit('/').next().unwrap_or_default();
    file == "insula.ko" || file.starts_with("insula.ko.")
}

pub(super) fn lockdown(root: &Root, loaded: bool) -> Finding {
    let Ok(mode) = lockdown::mode(root) else {
        return Finding::untested(
            "lockdown",
            "unknown: /sys/kernel/security/lockdown is missing",
            "`sudo mount -t securityfs none /sys/kernel/security` shows it; a kernel without \
             lockdown has no such file",
        );
    };
    match mode.as_str() {
        lockdown::NONE => Finding::ok("lockdown", lockdown::NONE),
        mode if loaded => Finding::bad(
            "lockdown",
            format!("{mode}: the module starts no node, as kexec starts no unsigned kernel"),
            "boot without lockdown: without `lockdown=`, and with Secure Boot off",
        ),
        mode => Finding::bad(
            "lockdown",
            mode,
            "only signed modules load, and no node is started: boot without lockdown, without \
             `lockdown=` and with Secure Boot off",
        ),
    }
}

#[cfg(test)]
mod tests {
    use insula_base::root::fake::Tree;

    use super::super::Verdict;
    use super::super::tests::failed;
    use super::*;

    #[test]
    fn every_result_of_opening_has_its_verdict() {
        let root = Tree::new(&[]).root();
        assert_eq!(module(&root, &Ok(())).verdict, Verdict::Ok);
        let verdict = |kind| module(&root, &failed(kind)).verdict;
        assert_eq!(verdict(Kind::OtherRevision(Some(2))), Verdict::Bad);
        assert_eq!(verdict(Kind::NoPrivilege), Verdict::Untested);
        assert_eq!(verdict(Kind::NoModule), Verdict::Bad);
        assert_eq!(verdict(Kind::Other), Verdict::Bad);
    }

    #[test]
    fn loading_of_modules_is_disabled() {
        let tree = Tree::new(&[("/proc/sys/kernel/modules_disabled", "1\n")]);
        assert!(
            module(&tree.root(), &failed(Kind::NoModule))
                .found
                .contains("disabled")
        );
    }

    #[test]
    fn only_insula_ko_counts() {
        assert!(is_ours("updates/dkms/insula.ko.xz: kernel/a.ko"));
        assert!(!is_ours("kernel/b.ko: extra/insula.ko"));
        assert!(!is_ours("extra/peninsula.ko:"));
    }
}
