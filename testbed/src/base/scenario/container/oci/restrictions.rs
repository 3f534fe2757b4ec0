//! What restricts a container's program, and what it sees of its kernel, is what its configuration says.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::{Value, json};

use super::bundles::{NAME, OUTPUT, configure, create, delete_ended, runtime};
use super::copied::SNAPSHOT;
use super::delegated::{IMAGE, LWK};
use super::{VOLUME, nothing_is_left};
use crate::base::Finding;
use crate::base::support::insula_command::{assert_equal, wait_for};

/// What the program prints of itself: it is process 1, with one capability as its user. It leaves a message as those of
/// Kubernetes do.
const SHOWS: &str = "echo $$; busybox id -u; ulimit -n; umask; \
    busybox grep -E 'CapBnd|CapEff|NoNewPrivs' /proc/self/status | busybox tr -d '\\t'; \
    cat /proc/self/oom_score_adj /proc/sys/net/ipv4/ip_forward; \
    busybox stat -c '%a %t,%T %F' /dev/own /dev/null; \
    cat /etc/passwd | busybox wc -c; test -w /proc/sys/kernel/hostname || echo read-only; \
    busybox awk '$2 == \"/dev\" || $2 == \"/dev/mqueue\" {print $1, $3, substr($4, 1, 2)}' /proc/mounts; \
    echo done > /dev/termination-log; cat /var/run/secrets/there; (echo > /run/secrets/there) 2> /dev/null || echo shown";
/// CAP_KILL.
const SHOWN: &str = "1\n33\n77\n0027\n\
    CapEff:0000000000000020\nCapBnd:0000000000000020\nNoNewPrivs:1\n\
    500\n1\n600 a,29a character special file\n666 1,3 character special file\n\
    0\nread-only\ntmpfs tmpfs ro\nmqueue mqueue rw\nof the base\nshown\n";
/// What a further program has.
const OF_OTHERS: &str = "busybox grep CapBnd /proc/self/status | busybox tr -d '\\t'; ulimit -n";

pub(super) fn play() -> Result<(), Finding> {
    play_on(json!({}), "77")?;
    // Joined by the ordinary runtime, which limits only the first of these itself.
    play_on(json!({IMAGE: LWK}), "1024")
}

/// On a copy of a node that has booted.
pub(super) fn of_copies() -> Result<(), Finding> {
    play_on(json!({IMAGE: SNAPSHOT}), "77")
}

/// On a node of the image that these annotations name; what joins the container may open so many files.
fn play_on(annotations: Value, files: &str) -> Result<(), Finding> {
    let [secret, message] = ["there", "message"].map(|name| Path::new(VOLUME).join(name));
    fs::write(&secret, "of the base\n")?;
    fs::write(&message, "")?;
    fs::set_permissions(&message, Permissions::from_mode(0o666))?;
    configure(|config| {
        restrict(config, &secret, &message);
        config["annotations"] = annotations;
    })?;
    create()?;
    runtime(&["start", NAME])?.with_status(0)?;
    wait_for("what it shows", || {
        Ok((fs::read_to_string(OUTPUT)?.contains("shown")).then_some(()))
    })?;
    let shown = fs::read_to_string(OUTPUT)?;
    assert_equal("what it is", &shown.as_str(), &SHOWN)?;
    let said = fs::read_to_string(&message)?;
    assert_equal("its message", &said.as_str(), &"done\n")?;
    let joined = runtime(&["exec", NAME, "sh", "-c", OF_OTHERS])?.with_status(0)?;
    let expected = format!("CapBnd:0000000000000020\n{files}\n");
    assert_equal("what joins it", &joined, &expected)?;
    runtime(&["kill", NAME, "KILL"])?.with_status(0)?;
    delete_ended(NAME)?;
    nothing_is_left()
}

/// `secret`: a file for the container, where engines put such, to which a link of its root leads. `message`: another, among
/// its devices.
fn restrict(config: &mut Value, secret: &Path, message: &Path) {
    let process = &mut config["process"];
    process["args"] = json!(["sh", "-c", format!("{SHOWS}; busybox sleep 1000")]);
    process["user"] = json!({"uid": 33, "gid": 33, "umask": 0o27});
    let kill = json!(["CAP_KILL"]);
    process["capabilities"] = json!({
        "bounding": kill, "effective": kill, "permitted": kill, "inheritable": kill, "ambient": kill,
    });
    process["rlimits"] = json!([{"type": "RLIMIT_NOFILE", "soft": 77, "hard": 88}]);
    process["noNewPrivileges"] = json!(true);
    process["oomScoreAdj"] = json!(500);
    let mount =
        |place: &str, kind: &str| json!({"destination": place, "type": kind, "source": kind});
    config["mounts"] = json!([
        mount("/proc", "proc"),
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["ro"]},
        mount("/dev/mqueue", "mqueue"),
        {
            "destination": "/var/run/secrets/there",
            "type": "bind",
            "source": secret,
            "options": ["rbind", "ro"],
        },
        {"destination": "/dev/termination-log", "type": "bind", "source": message, "options": ["bind"]},
    ]);
    let linux = &mut config["linux"];
    linux["sysctl"] = json!({"net.ipv4.ip_forward": "1"});
    let device =
        json!({"path": "/dev/own", "type": "c", "major": 10, "minor": 666, "fileMode": 0o600});
    linux["devices"] = json!([device]);
    linux["resources"]["pids"] = json!({"limit": 5});
    linux["maskedPaths"] = json!(["/etc/passwd", "/proc/no-such"]);
    linux["readonlyPaths"] = json!(["/proc/sys"]);
}
