//! Descriptors of endpoints.

#![allow(unsafe_code, reason = "the rings are shared memory, mapped")]

use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use insula_abi::channel::rings_size;
use insula_channel::{SharedWords, Words};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

use crate::{CallError, DriverError, ioctl};

/// An endpoint of a channel, open as long as this lives.
#[derive(Debug)]
pub struct Channel {
    fd: OwnedFd,
    slots: u32,
}

/// Result of waiting for the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// The peer has rung since the last wait, possibly without news.
    Rung,
    /// The peer has left the session. What it sent before is still in the ring.
    Disconnected,
    /// Neither, within the timeout.
    TimedOut,
}

impl Channel {
    pub(crate) fn new(fd: OwnedFd, slots: u32) -> Self {
        Self { fd, slots }
    }

    /// Slots of each of its two rings.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Rings the peer's doorbell (`INSULA_CHANNEL_RING`).
    ///
    /// # Errors
    /// The module's error; `EPIPE` when the peer has disconnected.
    pub fn ring(&self) -> Result<(), CallError> {
        ioctl::channel_ring(self.fd.as_fd())
    }

    /// Another descriptor of the same endpoint, which is open as long as one of them is.
    ///
    /// # Errors
    /// The system's error.
    pub fn try_clone(&self) -> std::io::Result<Self> {
        Ok(Self::new(self.fd.try_clone()?, self.slots))
    }

    /// Binds one of the channel's events to eventfds (`INSULA_CHANNEL_EVENTFD`): the ioeventfd is
    /// written when the peer signals the event, writing the irqfd signals it to the peer. `None`
    /// unbinds it.
    ///
    /// # Errors
    /// The module's error.
    pub fn bind_eventfds(
        &self,
        event: u32,
        eventfds: Option<(&dyn AsRawFd, &dyn AsRawFd)>,
    ) -> Result<(), CallError> {
        ioctl::channel_eventfd(self.fd.as_fd(), event, eventfds)
    }

    /// Waits until the peer rings or disconnects, at most that long.
    ///
    /// # Errors
    /// The kernel's error; `EINTR` when a signal came.
    pub fn wait(&self, timeout: Duration) -> Result<Waited, Errno> {
        // Rounded up, so that the last wait does not spin.
        let timeout_ms = timeout.as_micros().div_ceil(1000);
        let timeout = PollTimeout::try_from(timeout_ms).unwrap_or(PollTimeout::MAX);
        let mut polled = [PollFd::new(self.fd.as_fd(), PollFlags::POLLIN)];
        if poll(&mut polled, timeout)? == 0 {
            return Ok(Waited::TimedOut);
        }
        let disconnected = polled[0]
            .revents()
            .is_some_and(|events| events.contains(PollFlags::POLLHUP));
        // Resets the count of rings, so that the next wait waits for another.
        match nix::unistd::read(&self.fd, &mut [0; 8]) {
            _ if disconnected => Ok(Waited::Disconnected),
            Ok(0) => Ok(Waited::Disconnected),
            Ok(_) => Ok(Waited::Rung),
            Err(errno) => Err(errno),
        }
    }

    /// Maps its rings: words that the peer may change.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn map(&self) -> Result<RingWords, DriverError> {
        let bytes = rings_size(self.slots);
        let size = usize::try_from(bytes).ok().and_then(NonZeroUsize::new);
        let size = size.ok_or(DriverError::Size(bytes))?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new shared mapping at an address of the kernel's choice; it replaces nothing.
        let start = unsafe { mmap(None, size, protection, MapFlags::MAP_SHARED, &self.fd, 0) };
        let start = start.map_err(CallError::of("mmap"))?;
        // SAFETY: 1. the mapping lives as long as the value below, and is reached through it alone.
        // 2. Others write it at any time, which atomics allow.
        let words =
            unsafe { SharedWords::new(start.as_ptr().cast(), size.get() / size_of::<u64>()) };
        Ok(RingWords(Arc::new(Mapped {
            start: start.cast(),
            size,
            words,
        })))
    }
}

impl AsFd for Channel {
    /// Can be polled like an eventfd.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The words of a channel's rings. Clones share one mapping.
#[derive(Clone, Debug)]
pub struct RingWords(Arc<Mapped>);

#[derive(Debug)]
struct Mapped {
    start: NonNull<u8>,
    size: NonZeroUsize,
    words: SharedWords,
}

// SAFETY: the mapping belongs to the process, not to a thread, and is reached through atomics only.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: this is the whole of the mapping, and no copy of `words` has left this value.
        let _ = unsafe { munmap(self.start.cast(), self.size.get()) };
    }
}

impl Words for RingWords {
    fn count(&self) -> usize {
        self.0.words.count()
    }

    fn load(&self, index: usize, ordering: Ordering) -> u64 {
        self.0.words.load(index, ordering)
    }

    fn store(&self, index: usize, value: u64, ordering: Ordering) {
        self.0.words.store(index, value, ordering);
    }
}
