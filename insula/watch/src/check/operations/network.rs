//! Operations of the network: of protocols, their handlers, packets, hooks of netfilter and devices.

use super::tables::Tables;
use crate::target::Place;
use kimage::running::RunningError;

/// Limit on the hooks at one place, and on elements of an array of the kernel.
const HOOKS_MAX: u64 = 1024;
/// `SOCK_MAX`, `NPROTO`, `MAX_INET_PROTOS` and `PTYPE_HASH_SIZE`: elements of the arrays.
const SOCKET_KINDS: u64 = 11;
const FAMILIES: u64 = 46;
const PROTOCOLS: u64 = 256;
const PACKET_LISTS: u64 = 16;
/// Hooks of a network namespace, for each family.
const HOOKS: [&str; 4] = ["hooks_ipv4", "hooks_ipv6", "hooks_arp", "hooks_bridge"];
/// Tables of a device, by the members of `struct net_device` that point to them.
const DEVICE_TABLES: [(&str, &str); 3] = [
    ("netdev_ops", "net_device_ops"),
    ("ethtool_ops", "ethtool_ops"),
    ("header_ops", "header_ops"),
];
/// Arrays of pointers to structures with functions: its variable, its type, its elements, and what it is.
const ARRAYS: [(&str, &str, u64, &str); 3] = [
    (
        "net_families",
        "net_proto_family",
        FAMILIES,
        "the families of sockets",
    ),
    (
        "inet_protos",
        "net_protocol",
        PROTOCOLS,
        "the protocols of IPv4",
    ),
    (
        "inet6_protos",
        "inet6_protocol",
        PROTOCOLS,
        "the protocols of IPv6",
    ),
];

pub(super) fn look(tables: &mut Tables<'_, '_>) -> Result<(), RunningError> {
    let kernel = tables.kernel;
    if let Ok(list) = kernel.global("proto_list", "list_head") {
        for proto in list.list("proto", "node")? {
            let user = || name_of(&proto, "the protocol");
            tables.look("proto", proto.address(), &user)?;
        }
    }
    arrays(tables)?;
    socket_kinds(tables)?;
    packets(tables)?;
    if let Ok(list) = kernel.global("net_namespace_list", "list_head") {
        for namespace in list.list("net", "list")? {
            hooks(tables, &namespace)?;
            devices(tables, &namespace)?;
        }
    }
    Ok(())
}

fn name_of(object: &Place<'_, '_>, what: &str) -> String {
    let name = object.member("name").and_then(|name| name.text());
    format!("{what} {}", name.unwrap_or_default())
}

fn arrays(tables: &mut Tables<'_, '_>) -> Result<(), RunningError> {
    let kernel = tables.kernel;
    for (variable, structure, count, what) in ARRAYS {
        let Some(start) = kernel.symbols().address(variable) else {
            continue;
        };
        for index in 0..count {
            let address = kernel.word(start.wrapping_add(8 * index))?;
            let user = || format!("{what}, number {index}");
            tables.look(structure, address, &user)?;
        }
    }
    Ok(())
}

/// Kinds of sockets of IP: lists by their type.
fn socket_kinds(tables: &mut Tables<'_, '_>) -> Result<(), RunningError> {
    let kernel = tables.kernel;
    let size = kernel.btf()?.size_of("list_head")?;
    for variable in ["inetsw", "inetsw6"] {
        let Some(start) = kernel.symbols().address(variable) else {
            continue;
        };
        for index in 0..SOCKET_KINDS {
            let list = kernel.object(start.wrapping_add(size * index), "list_head")?;
            for kind in list.list("inet_protosw", "list")? {
                let user = || format!("{variable}, type {index}");
                tables.look("proto_ops", kind.number("ops")?, &user)?;
                tables.look("proto", kind.number("prot")?, &user)?;
            }
        }
    }
    Ok(())
}

/// Handlers of packets by their EtherType, and of all packets.
fn packets(tables: &mut Tables<'_, '_>) -> Result<(), RunningError> {
    let kernel = tables.kernel;
    let size = kernel.btf()?.size_of("list_head")?;
    for (variable, count) in [("ptype_base", PACKET_LISTS), ("ptype_all", 1)] {
        let Some(start) = kernel.symbols().address(variable) else {
            continue;
        };
        for index in 0..count {
            let list = kernel.object(start.wrapping_add(size * index), "list_head")?;
            for handler in list.list("packet_type", "list")? {
                let user = || match handler.number("type") {
                    Ok(kind) => format!("packets of the type {:#06x}", (kind as u16).swap_bytes()),
                    Err(_) => "packets".to_owned(),
                };
                tables.look("packet_type", handler.address(), &user)?;
            }
        }
    }
    Ok(())
}

/// Hooks of netfilter.
fn hooks(tables: &mut Tables<'_, '_>, namespace: &Place<'_, '_>) -> Result<(), RunningError> {
    let all = namespace.member("nf")?;
    for family in HOOKS {
        let Ok(places) = all.member(family) else {
            continue;
        };
        let count = places.count()?;
        for index in 0..u64::from(count) {
            let Some(entries) = places.element(index)?.target()? else {
                continue;
            };
            let number = entries.number("num_hook_entries")?.min(HOOKS_MAX);
            for position in 0..number {
                let entry = entries.member("hooks")?.element(position)?;
                let user = || format!("netfilter, {family}[{index}]");
                tables.look("nf_hook_entry", entry.address(), &user)?;
            }
        }
    }
    Ok(())
}

fn devices(tables: &mut Tables<'_, '_>, namespace: &Place<'_, '_>) -> Result<(), RunningError> {
    let list = namespace.member("dev_base_head")?;
    for device in list.list("net_device", "dev_list")? {
        let user = || name_of(&device, "the network device");
        tables.look("net_device", device.address(), &user)?;
        for (member, structure) in DEVICE_TABLES {
            tables.look(structure, device.number(member)?, &user)?;
        }
    }
    Ok(())
}
