//! Operations of file systems: of their kinds, of those that are mounted, of inodes and open files.

use super::members::Members;
use super::tables::Tables;
use crate::target::Place;
use crate::task::listed;
use kimage::running::RunningError;
use std::collections::HashSet;

/// Limits on what is looked at: kinds of file systems; inodes of each file system from either end of
/// its list; descriptors of a process; open files.
const KINDS_MAX: usize = 1024;
const INODES_MAX: usize = 128;
const DESCRIPTORS_MAX: u64 = 1024;
const FILES_MAX: usize = 1 << 14;

/// Tables of a file system, by the members of `struct super_block` that point to them.
const TABLES: [(&str, &str); 4] = [
    ("s_op", "super_operations"),
    ("s_d_op", "dentry_operations"),
    ("s_export_op", "export_operations"),
    ("dq_op", "dquot_operations"),
];

pub(super) fn look(tables: &mut Tables<'_, '_>) -> Result<(), RunningError> {
    kinds(tables)?;
    let members = [
        "i_sb",
        "i_op",
        "i_fop",
        "i_ino",
        "i_sb_list.next",
        "i_sb_list.prev",
    ];
    let inodes = Members::of(tables.kernel, "inode", members)?;
    let mounted = tables.kernel.global("super_blocks", "list_head")?;
    for block in mounted.list("super_block", "s_list")? {
        file_system(tables, &block, &inodes)?;
    }
    open_files(tables)
}

/// Members of an inode: its file system, its tables, its number, and its links in the list of that.
type Inodes = Members<6>;

/// The list of kinds of file systems: each points to the next one, since 7.2 to the link in it.
fn kinds(tables: &mut Tables<'_, '_>) -> Result<(), RunningError> {
    let kernel = tables.kernel;
    let (offset, name) = match kernel.btf()?.offset_of("file_system_type", "list") {
        Ok(offset) => (offset, "list.next"),
        Err(_) => (0, "next"),
    };
    let mut next = kernel.word(kernel.symbol("file_systems")?)?;
    for _ in 0..KINDS_MAX {
        if next == 0 {
            break;
        }
        let kind = next.wrapping_sub(offset);
        let user = || "the list of file systems".to_owned();
        tables.look("file_system_type", kind, &user)?;
        next = kernel.object(kind, "file_system_type")?.number(name)?;
    }
    Ok(())
}

fn file_system(
    tables: &mut Tables<'_, '_>,
    block: &Place<'_, '_>,
    inodes: &Inodes,
) -> Result<(), RunningError> {
    let name = block.member("s_id")?.text()?;
    let user = || format!("the file system {name}");
    for (member, structure) in TABLES {
        // Without quotas there is none for them.
        if let Ok(address) = block.number(member) {
            tables.look(structure, address, &user)?;
        }
    }
    if let Some(root) = block.follow("s_root")? {
        tables.look("dentry_operations", root.number("d_op")?, &user)?;
        if let Some(inode) = inodes.read(&tables.memory, root.number("d_inode")?) {
            look_at_inode(tables, inode, &name)?;
        }
    }
    let entry = tables.kernel.btf()?.offset_of("inode", "i_sb_list")?;
    let list = block.member("s_inodes")?;
    let ends = [(list.number("next")?, 4), (list.number("prev")?, 5)];
    for (mut link, direction) in ends {
        // It changes meanwhile: so it ends where it is wrong.
        for _ in 0..INODES_MAX {
            let inode = match link == list.address() {
                true => None,
                false => inodes.read(&tables.memory, link.wrapping_sub(entry)),
            };
            let Some(inode) = inode.filter(|inode| inode[0] == block.address()) else {
                break;
            };
            look_at_inode(tables, inode, &name)?;
            link = inode[direction];
        }
    }
    Ok(())
}

fn look_at_inode(
    tables: &mut Tables<'_, '_>,
    inode: [u64; 6],
    name: &str,
) -> Result<(), RunningError> {
    let [_, operations, file_operations, number, ..] = inode;
    let user = || format!("inode {number} of {name}");
    tables.look("inode_operations", operations, &user)?;
    tables.look("file_operations", file_operations, &user)
}

/// The open files of all processes.
fn open_files(tables: &mut Tables<'_, '_>) -> Result<(), RunningError> {
    let kernel = tables.kernel;
    let members = Members::of(kernel, "file", ["f_op", "private_data"])?;
    let sockets = kernel.symbols().address("socket_file_ops");
    let mut seen = HashSet::new();
    let mut left = FILES_MAX;
    for task in listed(kernel)? {
        let Some(files) = task.follow("files")? else {
            continue;
        };
        if !seen.insert(files.address()) {
            continue;
        }
        let user = || match task.number("pid") {
            Ok(id) => format!("an open file of pid {id}"),
            Err(_) => "an open file".to_owned(),
        };
        for file in descriptors(&files)? {
            if left == 0 {
                return Ok(());
            }
            left -= 1;
            let Some([operations, data]) = members.read(&tables.memory, file) else {
                continue;
            };
            tables.look("file_operations", operations, &user)?;
            if sockets == Some(operations) {
                look_at_socket(tables, data, &user)?;
            }
        }
    }
    Ok(())
}

/// Addresses of the files of a table of descriptors.
fn descriptors(files: &Place<'_, '_>) -> Result<Vec<u64>, RunningError> {
    let Some(table) = files.follow("fdt")? else {
        return Ok(Vec::new());
    };
    let count = table.number("max_fds")?.min(DESCRIPTORS_MAX);
    let mut bytes = vec![0; (count * 8) as usize];
    files.kernel().read(table.number("fd")?, &mut bytes)?;
    let (words, _) = bytes.as_chunks::<8>();
    let files = words.iter().copied().map(u64::from_le_bytes);
    Ok(files.filter(|file| *file != 0).collect())
}

fn look_at_socket(
    tables: &mut Tables<'_, '_>,
    address: u64,
    user: &dyn Fn() -> String,
) -> Result<(), RunningError> {
    let socket = tables.kernel.object(address, "socket")?;
    tables.look("proto_ops", socket.number("ops")?, user)?;
    if let Some(inner) = socket.follow("sk")? {
        tables.look("sock", inner.address(), user)?;
        tables.look("proto", inner.number("__sk_common.skc_prot")?, user)?;
    }
    Ok(())
}
