//! What a container sees of its node's kernel, by its configuration: the node's agent mounts and hides it so.

use insula_agent::view::{DeviceNode, KernelMount, View};
use insula_base::error::Error;
use rustix::mount::{MountFlags, MountPropagationFlags};

use super::config::{Config, Device, Mount};
use super::mounts::{self, OF_THE_NODE};

/// File systems that every container has: mount point, type, source, flags and other options.
const USUAL: [(&str, &str, &str, MountFlags, &str); 6] = [
    ("/proc", "proc", "proc", HARDENED, ""),
    (
        "/sys",
        "sysfs",
        "sysfs",
        HARDENED.union(MountFlags::RDONLY),
        "",
    ),
    ("/dev", "tmpfs", "tmpfs", MountFlags::NOSUID, "mode=755"),
    ("/run", "tmpfs", "tmpfs", MountFlags::NOSUID, "mode=755"),
    ("/dev/pts", "devpts", "devpts", MountFlags::NOSUID, ""),
    ("/dev/shm", "tmpfs", "shm", HARDENED, "mode=1777"),
];
const HARDENED: MountFlags = MountFlags::NOSUID
    .union(MountFlags::NODEV)
    .union(MountFlags::NOEXEC);
/// Options of mounts that are flags.
const FLAGS: [(&str, MountFlags); 10] = [
    ("ro", MountFlags::RDONLY),
    ("nosuid", MountFlags::NOSUID),
    ("nodev", MountFlags::NODEV),
    ("noexec", MountFlags::NOEXEC),
    ("noatime", MountFlags::NOATIME),
    ("nodiratime", MountFlags::NODIRATIME),
    ("relatime", MountFlags::RELATIME),
    ("strictatime", MountFlags::STRICTATIME),
    ("sync", MountFlags::SYNCHRONOUS),
    ("dirsync", MountFlags::DIRSYNC),
];
/// Options that say nothing to the file system.
const IGNORED: [&str; 11] = [
    "rw",
    "suid",
    "dev",
    "exec",
    "atime",
    "async",
    "bind",
    "rbind",
    "newinstance",
    "tmpcopyup",
    "defaults",
];
const PROPAGATIONS: [(&str, MountPropagationFlags); 4] = [
    ("shared", MountPropagationFlags::SHARED),
    ("slave", MountPropagationFlags::DOWNSTREAM),
    ("private", MountPropagationFlags::PRIVATE),
    ("unbindable", MountPropagationFlags::UNBINDABLE),
];
/// Type and permissions of device nodes, as stat(2) has them.
const TYPES: [(&str, u32); 4] = [
    ("c", 0o020_000),
    ("u", 0o020_000),
    ("b", 0o060_000),
    ("p", 0o010_000),
];
const PERMISSIONS: u32 = 0o666;
const ALL_PERMISSIONS: u32 = 0o7777;

/// What a container of this configuration sees.
///
/// # Errors
/// What no kernel has.
pub(super) fn of(config: &Config) -> Result<View, Error> {
    let linux = &config.linux;
    let devices: Result<_, _> = linux.devices.iter().map(device).collect();
    let sysctls = linux.sysctl.iter();
    Ok(View {
        mounts: mounts(config)?,
        devices: devices?,
        sysctls: sysctls
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect(),
        masked_paths: linux.masked_paths.clone(),
        read_only_paths: linux.readonly_paths.clone(),
        // Known when the mounts are in place.
        volumes: Vec::new(),
        propagation: propagation(&linux.rootfs_propagation)?,
    })
}

/// Those of the configuration in their order, and the usual ones that it lacks: first what others are mounted in.
fn mounts(config: &Config) -> Result<Vec<KernelMount>, Error> {
    let given: Vec<_> = mounts::of_the_node(&config.mounts)?
        .into_iter()
        .map(kernel_mount)
        .collect();
    let is_given = |place: &str| given.iter().any(|one| one.mount_point == place);
    let missing = USUAL.iter().filter(|(place, ..)| !is_given(place));
    let (outer, inner): (Vec<_>, Vec<_>) =
        missing.partition(|(place, ..)| OF_THE_NODE.contains(place));
    let usual = |&(place, kind, source, flags, options): &(&str, &str, &str, MountFlags, &str)| {
        KernelMount {
            kind: kind.to_owned(),
            source: source.to_owned(),
            mount_point: place.to_owned(),
            flags: flags.bits(),
            options: options.to_owned(),
        }
    };
    let outer: Vec<_> = outer.into_iter().map(usual).collect();
    let inner: Vec<_> = inner.into_iter().map(usual).collect();
    Ok([outer, given.clone(), inner].concat())
}

fn kernel_mount(mount: Mount) -> KernelMount {
    let kind = match mount.kind.as_str() {
        // Nodes have no groups of the first version, and devices of their own.
        "cgroup" => "cgroup2",
        "devtmpfs" => "tmpfs",
        kind => kind,
    };
    let flags = mount_flags(&mount.options);
    let is_other = |option: &&str| {
        let plain = option.strip_prefix('r').unwrap_or(option);
        let is_propagation = PROPAGATIONS
            .iter()
            .any(|(name, _)| [*option, plain].contains(name));
        flag(option).is_none() && !IGNORED.contains(option) && !is_propagation
    };
    // Only that lies in memory that options limit.
    let options = mount.options.iter().map(String::as_str).filter(is_other);
    let options: Vec<_> = options.filter(|_| kind == "tmpfs").collect();
    KernelMount {
        kind: kind.to_owned(),
        source: mount.source.to_string_lossy().into_owned(),
        mount_point: mount.destination.to_string_lossy().into_owned(),
        flags: flags.bits(),
        options: options.join(","),
    }
}

/// Flags of mount(2) that options name.
pub(super) fn mount_flags(options: &[String]) -> MountFlags {
    let flags = options.iter().filter_map(|option| flag(option));
    flags.fold(MountFlags::empty(), |all, one| all | one)
}

fn flag(option: &str) -> Option<MountFlags> {
    let found = FLAGS.iter().find(|(name, _)| *name == option);
    found.map(|&(_, flag)| flag)
}

fn device(device: &Device) -> Result<DeviceNode, Error> {
    let refused = || {
        let what = format!("there can be no device '{}'", device.path);
        Error::new(what).untouched()
    };
    let found = TYPES.iter().find(|(kind, _)| *kind == device.kind);
    let &(_, kind) = found.ok_or_else(refused)?;
    let number = |number: i64| u32::try_from(number).map_err(|_| refused());
    if !device.path.starts_with('/') {
        return Err(refused());
    }
    Ok(DeviceNode {
        path: device.path.clone(),
        mode: kind | device.file_mode.unwrap_or(PERMISSIONS) & ALL_PERMISSIONS,
        major: number(device.major)?,
        minor: number(device.minor)?,
        uid: device.uid.unwrap_or_default(),
        gid: device.gid.unwrap_or_default(),
    })
}

fn propagation(text: &str) -> Result<u32, Error> {
    let plain = text.strip_prefix('r').unwrap_or(text);
    if text.is_empty() {
        return Ok(0);
    }
    let found = PROPAGATIONS
        .iter()
        .find(|(name, _)| [text, plain].contains(name));
    let &(name, flags) = found.ok_or_else(|| {
        Error::new(format!("'{text}' is no way in which mounts propagate")).untouched()
    })?;
    match name == text {
        true => Ok(flags.bits()),
        false => Ok((flags | MountPropagationFlags::REC).bits()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn view(config: Value) -> Result<View, Error> {
        of(&serde_json::from_value(config).unwrap())
    }

    fn mount_points(mounts: &[KernelMount]) -> Vec<&str> {
        mounts.iter().map(|one| one.mount_point.as_str()).collect()
    }

    #[test]
    fn what_a_configuration_lacks_is_added_where_it_can_be_mounted() {
        let none = view(json!({})).unwrap();
        let usual = ["/proc", "/sys", "/dev", "/run", "/dev/pts", "/dev/shm"];
        assert_eq!(mount_points(&none.mounts), usual);
        let some = json!([
            {"destination": "/dev/pts/", "type": "devpts"},
            {"destination": "/data", "type": "bind", "source": "/srv"},
            {"destination": "/sys", "type": "sysfs"},
            {"destination": "/dev/shm", "type": "bind", "source": "/x"},
        ]);
        let some = view(json!({ "mounts": some })).unwrap();
        let expected = ["/proc", "/dev", "/run", "/dev/pts", "/sys", "/dev/shm"];
        assert_eq!(mount_points(&some.mounts), expected);
    }

    #[test]
    fn options_are_flags_or_of_the_file_system() {
        let of = |kind: &str, options: &[&str]| {
            let mount = json!({
                "destination": "/dev", "type": kind, "source": "x", "options": options,
            });
            let mounts = view(json!({"mounts": [mount]})).unwrap().mounts;
            let found = mounts.into_iter().find(|one| one.mount_point == "/dev");
            found.unwrap()
        };
        let tmpfs = of(
            "tmpfs",
            &[
                "nosuid",
                "mode=755",
                "rprivate",
                "size=1k",
                "ro",
                "tmpcopyup",
            ],
        );
        assert_eq!(
            tmpfs.flags,
            (MountFlags::NOSUID | MountFlags::RDONLY).bits()
        );
        assert_eq!(tmpfs.options, "mode=755,size=1k");
        let groups = of("cgroup", &["relatime", "nsdelegate"]);
        assert_eq!(
            (groups.kind.as_str(), groups.options.as_str()),
            ("cgroup2", "")
        );
        assert_eq!(groups.flags, MountFlags::RELATIME.bits());
    }

    #[test]
    fn devices_have_types_and_permissions() {
        let of = |device: Value| {
            let view = view(json!({"linux": {"devices": [device]}}))?;
            Ok::<_, Error>(view.devices[0].clone())
        };
        let block = json!({
            "path": "/dev/x", "type": "b", "major": 8, "minor": 1, "fileMode": 0o660, "gid": 6,
        });
        let block = of(block).unwrap();
        assert_eq!((block.mode, block.major, block.minor), (0o060_660, 8, 1));
        assert_eq!((block.uid, block.gid), (0, 6));
        let fifo = of(json!({"path": "/dev/y", "type": "p", "fileMode": null})).unwrap();
        assert_eq!(fifo.mode, 0o010_666);
        for bad in [
            json!({"path": "dev/x", "type": "c"}),
            json!({"path": "/dev/x", "type": "s"}),
            json!({"path": "/dev/x", "type": "c", "major": -1}),
        ] {
            assert!(of(bad.clone()).is_err(), "{bad}");
        }
    }

    #[test]
    fn mounts_propagate_as_the_configuration_says() {
        let of = |text: &str| {
            let view = view(json!({"linux": {"rootfsPropagation": text}}));
            view.map(|view| MountPropagationFlags::from_bits_retain(view.propagation))
        };
        let all = MountPropagationFlags::REC;
        assert_eq!(of("").unwrap(), MountPropagationFlags::empty());
        assert_eq!(of("shared").unwrap(), MountPropagationFlags::SHARED);
        assert_eq!(
            of("rslave").unwrap(),
            MountPropagationFlags::DOWNSTREAM | all
        );
        assert!(of("other").is_err());
    }
}
