//! What the module refused, in words: users know neither ioctls nor error numbers.

use std::fmt;

use nix::errno::Errno;

/// A call that the module, or the kernel on its way there, refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallError {
    /// The ioctl's name in the C header.
    pub call: &'static str,
    /// Why.
    pub errno: Errno,
}

impl std::error::Error for CallError {}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", purpose(self.call), reason(self.errno))
    }
}

/// What the call was to do.
fn purpose(call: &str) -> &'static str {
    match call {
        "INSULA_HELLO" => "greeting the module",
        "INSULA_MACHINE" => "asking for cores and memory",
        "INSULA_POOL_RESERVE" => "reserving cores and memory",
        "INSULA_POOL_RELEASE" => "giving back what was reserved",
        "INSULA_MEMORY_CREATE" | "INSULA_MEMORY_GROW" => "taking memory",
        "INSULA_MEMORY_CHUNKS" => "asking where memory lies",
        "INSULA_MEMORY_COPY" => "copying memory",
        "INSULA_MEMORY_REVOKE" => "taking memory back from programs",
        "INSULA_DESCRIPTION" => "reading what is kept beside a node or an image",
        "INSULA_IMAGE_ADD" | "INSULA_IMAGE_REPLACE" => "keeping the image",
        "INSULA_IMAGE_LIST" | "INSULA_IMAGE_OPEN" => "looking for images",
        "INSULA_IMAGE_REMOVE" => "removing the image",
        "INSULA_NODE_CREATE" => "making the node",
        "INSULA_NODE_LIST" | "INSULA_NODE_OPEN" | "INSULA_NODE_INFO" => "asking for the node",
        "INSULA_NODE_START" | "INSULA_NODE_CHANNELS" | "INSULA_NODE_DELEGATION" => {
            "starting the node"
        }
        "INSULA_NODE_RECREATE" => "starting the node again",
        "INSULA_NODE_STOP" | "INSULA_NODE_RETIRE" => "stopping the node",
        "INSULA_NODE_REMOVE" => "removing the node",
        "INSULA_NODE_SUPERVISE" => "supervising the node",
        "INSULA_NODE_INTERRUPT" => "interrupting the node",
        "INSULA_NODE_MEMORY" => "reaching the node's memory",
        "INSULA_NODE_SHARE" | "INSULA_NODE_SHARED" => "sharing memory between nodes",
        "INSULA_NODE_DEVICE_ADD" | "INSULA_NODE_DEVICES" => "giving the node a device",
        "INSULA_NODE_GROW" => "giving the node more",
        "INSULA_NODE_SHRINK" => "taking something back from the node",
        "INSULA_SPACE_CREATE" => "making room for a program on the node",
        "INSULA_NODE_LEND" | "INSULA_BORROW" | "INSULA_FRAMES_GRANT" | "INSULA_FRAMES_TAKE" => {
            "lending memory to the node"
        }
        _ => "speaking to the node",
    }
}

/// Why it was refused.
fn reason(errno: Errno) -> &'static str {
    match errno {
        Errno::EINVAL | Errno::EFAULT | Errno::E2BIG | Errno::ERANGE => {
            "the module does not accept what it is asked for (a mistake in insula: please report it)"
        }
        Errno::ENOTTY => "the module does not know this request (it may be of another version)",
        Errno::EPROTO => "module and command do not understand each other",
        Errno::ENOMEM => "this system has no memory for it",
        Errno::EMFILE => "this process has too many files open",
        Errno::ENFILE => "this system has too many files open",
        Errno::EBUSY => "it is in use",
        Errno::EAGAIN => "it is not ready",
        Errno::EALREADY => "that has happened already",
        Errno::ECANCELED => "it was called off",
        Errno::EACCES | Errno::EPERM => "it is not permitted",
        Errno::ENODEV | Errno::ENXIO | Errno::EPIPE => "it is gone",
        Errno::ENOENT | Errno::ENODATA => "there is none",
        Errno::EEXIST => "there is one already",
        Errno::ENOSPC => "there is no room for it",
        Errno::EOPNOTSUPP | Errno::ENOSYS => "this system, or the node's kernel, cannot do it",
        Errno::EIO => "the hardware does not do it (the kernel's log may tell more)",
        Errno::ETIMEDOUT | Errno::ETIME => "it took too long",
        Errno::EINTR => "it was interrupted",
        other => other.desc(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_names_of_calls_or_errors_reach_a_user() {
        let header = include_str!("../../../abi/include/insula.h");
        let calls = header.lines().filter_map(|line| {
            let (name, value) = line
                .strip_prefix("#define ")?
                .split_once(char::is_whitespace)?;
            value.contains("_IO").then_some(name)
        });
        let calls: Vec<_> = calls.collect();
        assert!(calls.len() > 30, "{calls:?}");
        for call in calls {
            for errno in (1..134).map(Errno::from_raw) {
                let told = CallError { call, errno }.to_string();
                let names = ["INSULA", "Invalid argument", &format!("{errno:?}")];
                let name = names.into_iter().find(|name| told.contains(name));
                assert_eq!(name, None, "{told}");
            }
        }
    }
}
