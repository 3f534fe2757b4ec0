//! Closing the close-on-exec files of a program that executes another.

use insula_abi::ioctl;

use crate::model::errno::Errno;
use crate::model::number;
use crate::task::thread::Thread;

/// Closes the close-on-exec files: the module does so in the proxy, which executes nothing else.
pub(super) async fn close_on_exec(thread: &mut Thread) -> Result<(), Errno> {
    let mirror = thread.process.pages().mirror_fd();
    let arguments = [mirror, ioctl::MIRROR_CLOSE_ON_EXEC.into(), 0, 0, 0, 0];
    thread
        .remote_syscall_as_kernel(number::IOCTL, arguments)
        .await
        .map(drop)
}
