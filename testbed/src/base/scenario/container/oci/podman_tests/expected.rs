//! What is expected of podman's tests.

/// Tests that crun passes and `insula-oci` does not, each with its file, and the reason.
pub(super) const EXCEPTIONS: &[(&str, &str, &str)] = &[
    (
        "030-run",
        "podman run --preserve-fds",
        "a descriptor of the base is none of another kernel",
    ),
    (
        "030-run",
        "podman run - uidmapping has no /sys/kernel mounts",
        NAMESPACE_OF_USERS,
    ),
    (
        "030-run",
        "podman run : full path to --runtime is preserved",
        "it copies the runtime to another name; this one is the command `insula` by the name `insula-oci`",
    ),
    (
        "030-run",
        "podman run --timeout - basic test",
        "it measures time, in which an emulated node also powers off",
    ),
    (
        "030-run",
        "podman run update /etc/hosts",
        NAMESPACE_OF_USERS,
    ),
    (
        "030-run",
        "podman run --device-read-bps",
        "the container's control groups are its kernel's; what is limited is what serves the node",
    ),
    (
        "035-logs",
        "podman logs - multi k8s-file",
        "it expects that two containers start within three seconds",
    ),
    (
        "050-stop",
        "podman stop --all",
        "it expects that three containers start within 20 seconds",
    ),
    (
        "160-volumes",
        "podman volume: exec/noexec",
        "what is mounted is looked at by the node, in whose words the program is refused; the status is the same",
    ),
    (
        "160-volumes",
        "podman volume type=tmpfs",
        "memory that the engine mounts is the base's, and the container's by virtiofs, as its other files",
    ),
    (
        "200-pod",
        "podman pod top - containers in different PID namespaces",
        "`podman top` shows what stands for a container",
    ),
    (
        "450-interactive",
        "podman detects correct tty size",
        ITS_TERMINAL,
    ),
    (
        "450-interactive",
        "podman run --tty -i failure with no tty",
        ITS_TERMINAL,
    ),
    (
        "500-networking",
        "podman run with slirp4ns assigns correct addresses to /etc/hosts",
        "the machine has no address; when crun plays it, other tests have left it one",
    ),
    (
        "500-networking",
        "podman run with slirp4ns assigns correct ip address container",
        "the node has an address of its own, behind the container's",
    ),
    (
        "500-networking",
        "podman network after restart",
        "it expects that a container that starts again answers within seconds",
    ),
    (
        "500-networking",
        "podman run /etc/* permissions",
        NAMESPACE_OF_USERS,
    ),
];

const ITS_TERMINAL: &str = "the terminal that it makes ends after ten seconds";
const NAMESPACE_OF_USERS: &str =
    "a namespace of users is refused: a node's users are its kernel's own";
