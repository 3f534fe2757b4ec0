//! Errors of the module as text for users, who know neither ioctls nor error numbers.

use std::fmt;

use nix::errno::Errno;

/// A call that the module, or the kernel on the way there, refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallError {
    /// Name of the ioctl in the C header, or of the system call.
    pub call: &'static str,
    /// Its error number.
    pub errno: Errno,
}

impl CallError {
    /// Makes one from the error number of that call.
    pub(crate) fn of(call: &'static str) -> impl FnOnce(Errno) -> Self {
        move |errno| Self { call, errno }
    }
}

impl std::error::Error for CallError {}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", purpose(self.call), reason(self.errno))
    }
}

/// What the call was for.
fn purpose(call: &str) -> &'static str {
    match call {
        "INSULA_HELLO" => "agreeing with the module on a revision",
        "INSULA_MACHINE" => "listing cores and memory",
        "INSULA_POOL_RESERVE" => "reserving cores and memory",
        "INSULA_POOL_RELEASE" => "releasing what is reserved",
        "INSULA_MEMORY_CREATE" | "INSULA_MEMORY_GROW" => "allocating memory",
        "INSULA_MEMORY_CHUNKS" => "listing chunks of memory",
        "INSULA_MEMORY_COPY" => "copying memory",
        "INSULA_MEMORY_SHOW" => "sharing the snapshot's memory",
        "INSULA_MEMORY_USE" => "reading what memory is used",
        "INSULA_MEMORY_STORE_SET" | "INSULA_MEMORY_OWN_SET" => "preparing the copy's memory",
        "INSULA_BASE_MEMORY" => "opening the base's memory",
        "INSULA_MEMORY_LIST_SET" => "listing what copies write at their start",
        "INSULA_MEMORY_GIVE_SET" => "telling what copies write at their start",
        "INSULA_DESCRIPTION" => "reading the description of a node or an image",
        "INSULA_IMAGE_ADD" | "INSULA_IMAGE_REPLACE" => "registering the image",
        "INSULA_IMAGE_LIST" | "INSULA_IMAGE_OPEN" => "opening images",
        "INSULA_IMAGE_REMOVE" => "removing the image",
        "INSULA_NODE_CREATE" => "creating the node",
        "INSULA_NODE_LIST" | "INSULA_NODE_OPEN" | "INSULA_NODE_INFO" => "opening the node",
        "INSULA_NODE_START" | "INSULA_NODE_CHANNELS" | "INSULA_NODE_DELEGATION" => {
            "starting the node"
        }
        "INSULA_NODE_RECREATE" => "restarting the node",
        "INSULA_NODE_STOP" | "INSULA_NODE_RETIRE" => "stopping the node",
        "INSULA_NODE_REMOVE" => "removing the node",
        "INSULA_NODE_SUPERVISE" => "supervising the node",
        "INSULA_NODE_INTERRUPT" => "interrupting the node",
        "INSULA_NODE_MEMORY" => "opening the node's memory",
        "INSULA_NODE_EXCHANGE_NAMES" => "exchanging names",
        "INSULA_NODE_RENAME" => "renaming the node",
        "INSULA_NODE_SHARE" | "INSULA_NODE_SHARED" => "sharing memory between nodes",
        "INSULA_NODE_DEVICE_ADD" | "INSULA_NODE_DEVICES" => "attaching a device to the node",
        "INSULA_NODE_GROW" => "adding cores or memory to the node",
        "INSULA_NODE_SHRINK" => "removing cores or memory from the node",
        "INSULA_MIRROR_CREATE" => "creating a program's address space on the node",
        "INSULA_NODE_GRANT_TABLE"
        | "INSULA_GRANT_IMPORT"
        | "INSULA_GRANT_ADD"
        | "INSULA_GRANT_REVOKE" => "granting memory to the node",
        "mmap" => "mapping memory",
        "poll" => "waiting for the other side",
        _ => "communicating with the node",
    }
}

/// The error number in words.
fn reason(errno: Errno) -> &'static str {
    match errno {
        Errno::EINVAL | Errno::EFAULT | Errno::E2BIG | Errno::ERANGE => {
            "the module rejected the request (a bug in insula: please report it)"
        }
        Errno::ENOTTY => "the module does not know this request (it may be of another version)",
        Errno::EPROTO => "module and command are not compatible",
        Errno::ENOMEM => "out of memory",
        Errno::EMFILE => "this process has too many files open",
        Errno::ENFILE => "this system has too many files open",
        Errno::EBUSY => "it is in use",
        Errno::EAGAIN => "it is not ready",
        Errno::EALREADY => "it has already happened",
        Errno::ECANCELED => "it was cancelled",
        Errno::EACCES | Errno::EPERM => "it is not permitted",
        Errno::ENODEV | Errno::ENXIO | Errno::EPIPE => "it is gone",
        Errno::ENOENT | Errno::ENODATA => "it does not exist",
        Errno::EEXIST => "it already exists",
        Errno::ENOSPC => "there is no room for it",
        Errno::EOPNOTSUPP | Errno::ENOSYS => "not supported by this system or the node's kernel",
        Errno::EIO => "hardware error (the kernel's log may say more)",
        Errno::ETIMEDOUT | Errno::ETIME => "it timed out",
        Errno::EINTR => "it was interrupted",
        other => other.desc(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_no_calls_and_no_error_numbers() {
        let headers = [
            include_str!("../../../abi/include/insula.h"),
            include_str!("../../../abi/include/insula_node.h"),
            include_str!("../../../abi/include/insula_mirror.h"),
        ];
        let lines = headers.into_iter().flat_map(str::lines);
        let calls = lines.filter_map(|line| {
            let (name, value) = line
                .strip_prefix("#define ")?
                .split_once(char::is_whitespace)?;
            value.contains("_IO").then_some(name)
        });
        let calls: Vec<_> = calls.collect();
        assert!(calls.len() > 30, "{calls:?}");
        for call in calls {
            for errno in (1..134).map(Errno::from_raw) {
                let text = CallError { call, errno }.to_string();
                let names = ["INSULA", "Invalid argument", &format!("{errno:?}")];
                let name = names.into_iter().find(|name| text.contains(name));
                assert_eq!(name, None, "{text}");
            }
        }
    }
}
