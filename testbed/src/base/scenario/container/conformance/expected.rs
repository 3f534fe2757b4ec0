//! What is expected of the tests.

/// Tests that `insula-oci` has passed.
pub(super) const PASSED: &[&str] = &[
    "config_updates_without_affect",
    "create",
    "default",
    "hooks_stdin",
    "hostname",
    "kill",
    "kill_no_effect",
    "killsig",
    "linux_devices",
    "linux_masked_paths",
    "linux_mount_label",
    "linux_ns_path_type",
    "linux_process_apparmor_profile",
    "linux_readonly_paths",
    "linux_rootfs_propagation",
    "linux_seccomp",
    "linux_sysctl",
    "pidfile",
    "poststart_fail",
    "poststop",
    "poststop_fail",
    "prestart_fail",
    "process",
    "process_capabilities",
    "process_capabilities_fail",
    "process_oom_score_adj",
    "process_rlimits_fail",
    "process_user",
    "root_readonly_true",
    "state",
];

/// Tests that runc passes and `insula-oci` does not, with the reasons.
pub(super) const EXCEPTIONS: &[(&str, &str)] = &[
    (
        "linux_ns_itype",
        "what stands for a container on the base always has mounts of its own",
    ),
    (
        "linux_ns_nopath",
        "it wants a namespace of users, which is refused, and one of processes on the base",
    ),
    (
        "linux_ns_path",
        "what stands for a container is among the base's processes: its node's supervisor is known by its id there",
    ),
    (
        "linux_uid_mappings",
        "a namespace of users is refused: a node's users are its kernel's own",
    ),
    (
        "mounts",
        "volumes are mounted on the base, and are part of the root that the node sees",
    ),
];
