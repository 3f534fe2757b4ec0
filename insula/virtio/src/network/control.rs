//! The control virtqueue of a network card (specification, 5.1.6.5): by it the driver says how many pairs of queues it
//! uses. A thread answers its commands.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use virtio_queue::{DescriptorChain, Queue, QueueOwnedT, QueueT, Reader, Writer};
use vm_memory::{GuestMemoryMmap, Le16};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

use crate::device::{StartError, Virtqueue};
use crate::memory::NodeMemory;
use crate::vhost::{
    EVENT_IDX, EventfdBinder, QueueNotifier, bind_notifiers, check_kept, failed, used_index,
};

/// Class and command that set how many pairs are used (5.1.6.5.6.1).
const SET_PAIRS: [u8; 2] = [4, 0];
/// Status of a command.
const OK: u8 = 0;
const ERR: u8 = 1;

/// What carries out a command: it is given how many pairs the driver uses.
pub(super) type SetPairs = Box<dyn FnMut(usize) -> io::Result<()> + Send>;

/// The virtqueue, while it is served.
pub(super) struct Control {
    virtqueue: Virtqueue,
    memory: Arc<Mutex<NodeMemory>>,
    stop: EventFd,
    thread: Option<JoinHandle<()>>,
}

impl Control {
    /// Serves it until this is dropped.
    pub(super) fn start(
        memory: NodeMemory,
        binder: &Arc<dyn EventfdBinder>,
        features: u64,
        virtqueue: &Virtqueue,
        set_pairs: SetPairs,
    ) -> Result<Self, StartError> {
        let queue = queue(&memory, features, virtqueue)?;
        let notifier = bind_notifiers(&memory, binder, &[*virtqueue])?.pop();
        let notifier = notifier.ok_or_else(|| StartError::Backend("it has no event".into()))?;
        let stop = EventFd::new(EFD_CLOEXEC | EFD_NONBLOCK).map_err(failed("making an eventfd"))?;
        let waiter = waiter(notifier.kicked(), &stop).map_err(failed("making an epoll"))?;
        let memory = Arc::new(Mutex::new(memory));
        let mut server = Server {
            queue,
            notifier,
            memory: Arc::clone(&memory),
            set_pairs,
        };
        // Commands from before it was bound.
        server.notifier.kick();
        let thread = thread::Builder::new().name("virtio-control".into());
        let thread = thread.spawn(move || server.serve(&waiter));
        Ok(Self {
            virtqueue: *virtqueue,
            memory,
            stop,
            thread: Some(thread.map_err(failed("starting a thread"))?),
        })
    }

    /// Uses this memory from now on. No access to the old one is under way when this returns.
    ///
    /// # Errors
    /// The virtqueue does not lie in it; the old one stays in use.
    pub(super) fn change_memory(&self, memory: NodeMemory) -> Result<(), StartError> {
        check_kept(&memory, &[self.virtqueue])?;
        *lock(&self.memory) = memory;
        Ok(())
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // A full counter says the same.
        let _ = self.stop.write(1);
        // A thread that panicked has ended as well.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn lock(memory: &Mutex<NodeMemory>) -> MutexGuard<'_, NodeMemory> {
    memory.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The virtqueue as it was set up, from its used index on: that of a copy of a node has been served before.
fn queue(memory: &NodeMemory, features: u64, set_up: &Virtqueue) -> Result<Queue, StartError> {
    let first = used_index(memory, set_up)?.index;
    let mut queue = Queue::new(set_up.size).map_err(failed("setting up the control virtqueue"))?;
    let words = |address: u64| (Some(address as u32), Some((address >> 32) as u32));
    let (low, high) = words(set_up.descriptors);
    queue.set_desc_table_address(low, high);
    let (low, high) = words(set_up.driver);
    queue.set_avail_ring_address(low, high);
    let (low, high) = words(set_up.device);
    queue.set_used_ring_address(low, high);
    queue.set_event_idx(features & EVENT_IDX != 0);
    queue.set_next_avail(first);
    queue.set_next_used(first);
    queue.set_ready(true);
    Ok(queue)
}

/// What its thread has.
struct Server {
    queue: Queue,
    notifier: QueueNotifier,
    memory: Arc<Mutex<NodeMemory>>,
    set_pairs: SetPairs,
}

impl Server {
    fn serve(&mut self, waiter: &Epoll) {
        while wait(waiter) {
            // It may have been read already.
            let _ = self.notifier.kicked().read();
            let shared = Arc::clone(&self.memory);
            let memory = lock(&shared);
            if self.answer_all(&memory.guest()).is_err() {
                // The driver has broken its virtqueue.
                return;
            }
        }
    }

    /// Answers the commands there are: no more than fit in the virtqueue before it looks whether it is to stop.
    fn answer_all(&mut self, memory: &GuestMemoryMmap<()>) -> Result<(), virtio_queue::Error> {
        for _ in 0..self.queue.size() {
            match self.queue.iter(memory)?.next() {
                Some(chain) => self.answer(memory, chain)?,
                None if self.queue.enable_notification(memory)? => {}
                None => return Ok(()),
            }
        }
        self.notifier.kick();
        Ok(())
    }

    fn answer(
        &mut self,
        memory: &GuestMemoryMmap<()>,
        chain: DescriptorChain<&GuestMemoryMmap<()>>,
    ) -> Result<(), virtio_queue::Error> {
        let head = chain.head_index();
        let is_done =
            pairs(memory, chain.clone()).is_some_and(|pairs| (self.set_pairs)(pairs).is_ok());
        let status = if is_done { OK } else { ERR };
        let written = Writer::new(memory, chain)
            .ok()
            .and_then(|mut writer| writer.write_obj(status).ok());
        let size = written.map_or(0, |()| size_of_val(&status) as u32);
        self.queue.add_used(memory, head, size)?;
        if self.queue.needs_notification(memory)? {
            self.notifier.notify_node();
        }
        Ok(())
    }
}

/// How many pairs a command says; none if it says something else.
fn pairs(
    memory: &GuestMemoryMmap<()>,
    chain: DescriptorChain<&GuestMemoryMmap<()>>,
) -> Option<usize> {
    let mut reader = Reader::new(memory, chain).ok()?;
    let command: [u8; 2] = reader.read_obj().ok()?;
    let pairs: Le16 = reader.read_obj().ok()?;
    (command == SET_PAIRS).then(|| u16::from(pairs).into())
}

/// What ends a wait.
const KICKED: u64 = 0;
const STOPPED: u64 = 1;

/// Waits for either of both.
fn waiter(kicked: &EventFd, stop: &EventFd) -> io::Result<Epoll> {
    let epoll = Epoll::new()?;
    for (data, one) in [(KICKED, kicked), (STOPPED, stop)] {
        let event = EpollEvent::new(EventSet::IN, data);
        epoll.ctl(ControlOperation::Add, one.as_raw_fd(), event)?;
    }
    Ok(epoll)
}

/// Waits for a kick; false if it is to stop.
fn wait(epoll: &Epoll) -> bool {
    let mut events = [EpollEvent::default(); 2];
    loop {
        match epoll.wait(-1, &mut events) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return false,
            Ok(count) => return events[..count].iter().all(|event| event.data() == KICKED),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};
    use std::time::{Duration, Instant};

    use insula_abi::Chunk;
    use insula_driver::CallError;
    use proptest::prelude::*;
    use vm_memory::{Bytes, GuestAddress};

    use super::*;

    /// Where the node's memory is, and in it the virtqueue with its buffers.
    const MEMORY: Chunk = Chunk {
        start: 0x10000,
        size: 0x4000,
    };
    const QUEUE: Virtqueue = Virtqueue {
        index: 4,
        size: 4,
        descriptors: 0x10000,
        driver: 0x11000,
        device: 0x12000,
        event: 9,
    };
    const COMMAND: u64 = 0x13000;
    const STATUS: u64 = 0x13100;
    /// Flags of a descriptor.
    const NEXT: u16 = 1;
    const WRITE: u16 = 2;
    const TIMEOUT: Duration = Duration::from_secs(20);

    /// Keeps the node's side of the notifications.
    #[derive(Default)]
    struct Binder(Mutex<Option<(EventFd, EventFd)>>);

    impl EventfdBinder for Binder {
        fn bind(&self, event: u32, kick: &EventFd, call: &EventFd) -> Result<(), CallError> {
            assert_eq!(event, QUEUE.event);
            let pair = (kick.try_clone().unwrap(), call.try_clone().unwrap());
            *self.0.lock().unwrap() = Some(pair);
            Ok(())
        }

        fn unbind(&self, _event: u32) {
            *self.0.lock().unwrap() = None;
        }
    }

    /// A driver with a control virtqueue that is served.
    struct Driver {
        memory: NodeMemory,
        binder: Arc<Binder>,
        control: Option<Control>,
        asked: Receiver<usize>,
        made: u16,
    }

    impl Driver {
        /// `content`: what the memory has before.
        fn start(content: &[u8]) -> Self {
            let file = tempfile::tempfile().unwrap();
            file.set_len(MEMORY.size).unwrap();
            let memory = NodeMemory::map(file.into(), &[MEMORY], 1).unwrap();
            let guest = memory.guest();
            guest
                .write_slice(content, GuestAddress(MEMORY.start))
                .unwrap();
            let (sender, asked) = channel();
            let set_pairs = move |pairs| match pairs {
                1..=3 => sender.send(pairs).map_err(io::Error::other),
                _ => Err(io::ErrorKind::InvalidInput.into()),
            };
            let binder = Arc::new(Binder::default());
            let as_binder: Arc<dyn EventfdBinder> = Arc::clone(&binder) as _;
            let set_pairs = Box::new(set_pairs);
            let control = Control::start(memory.clone(), &as_binder, EVENT_IDX, &QUEUE, set_pairs);
            Self {
                memory,
                binder,
                control: control.ok(),
                asked,
                made: 0,
            }
        }

        fn write<T: vm_memory::ByteValued>(&self, at: u64, value: T) {
            let guest = self.memory.guest();
            guest.write_obj(value, GuestAddress(at)).unwrap();
        }

        fn describe(&self, number: u64, buffer: (u64, u32), flags: u16, next: u16) {
            let at = QUEUE.descriptors + 16 * number;
            self.write(at, buffer.0);
            self.write(at + 8, buffer.1);
            self.write(at + 12, flags);
            self.write(at + 14, next);
        }

        /// Makes a command available; it takes the descriptors from 0 on.
        fn command(&mut self, bytes: &[u8], status_size: u32) {
            let guest = self.memory.guest();
            guest.write_slice(bytes, GuestAddress(COMMAND)).unwrap();
            self.write(STATUS, 0xee_u8);
            self.describe(0, (COMMAND, 2), NEXT, 1);
            self.describe(1, (COMMAND + 2, bytes.len() as u32 - 2), NEXT, 2);
            self.describe(2, (STATUS, status_size), WRITE, 0);
            let slot = u64::from(self.made % QUEUE.size);
            self.write(QUEUE.driver + 4 + 2 * slot, 0_u16);
            // From which buffer on it is to be notified.
            self.write(QUEUE.driver + 4 + 2 * u64::from(QUEUE.size), self.made);
            self.made += 1;
            self.write(QUEUE.driver + 2, self.made);
            self.kick();
        }

        fn kick(&self) {
            let bound = self.binder.0.lock().unwrap();
            bound.iter().for_each(|(kick, _)| kick.write(1).unwrap());
        }

        /// Waits for the answer, and for its notification; the status.
        fn answer(&self) -> u8 {
            let guest = self.memory.guest();
            let limit = Instant::now() + TIMEOUT;
            let used = || -> u16 { guest.read_obj(GuestAddress(QUEUE.device + 2)).unwrap() };
            while used() != self.made {
                assert!(Instant::now() < limit, "no answer");
                thread::yield_now();
            }
            let is_notified = || {
                let bound = self.binder.0.lock().unwrap();
                bound.as_ref().is_some_and(|(_, call)| call.read().is_ok())
            };
            while !is_notified() {
                assert!(Instant::now() < limit, "no notification");
                thread::yield_now();
            }
            guest.read_obj(GuestAddress(STATUS)).unwrap()
        }
    }

    #[test]
    fn the_driver_says_how_many_pairs_it_uses() {
        let mut driver = Driver::start(&[]);
        for pairs in [2, 3, 1] {
            driver.command(&[4, 0, pairs, 0], 1);
            assert_eq!(driver.answer(), OK);
            assert_eq!(driver.asked.try_recv(), Ok(usize::from(pairs)));
        }
    }

    #[test]
    fn what_is_not_a_command_or_cannot_be_done_is_refused() {
        let mut driver = Driver::start(&[]);
        for bytes in [
            &[4, 0, 4, 0][..],
            &[4, 0, 0, 0],
            &[4, 1, 1, 0],
            &[0, 0, 1, 0],
            &[4, 0, 1],
        ] {
            driver.command(bytes, 1);
            assert_eq!(driver.answer(), ERR, "{bytes:?}");
        }
        assert!(driver.asked.try_recv().is_err());
    }

    #[test]
    fn memory_that_changes_is_used_from_then_on() {
        let mut driver = Driver::start(&[]);
        let file = tempfile::tempfile().unwrap();
        file.set_len(MEMORY.size).unwrap();
        driver.memory = NodeMemory::map(file.into(), &[MEMORY], 1).unwrap();
        driver
            .control
            .as_ref()
            .unwrap()
            .change_memory(driver.memory.clone())
            .unwrap();
        driver.command(&[4, 0, 2, 0], 1);
        assert_eq!(driver.answer(), OK);
    }

    #[test]
    fn its_virtqueue_stays_in_memory() {
        let mut driver = Driver::start(&[]);
        let file = tempfile::tempfile().unwrap();
        file.set_len(0x1000).unwrap();
        let less = Chunk {
            size: 0x1000,
            ..MEMORY
        };
        let less = NodeMemory::map(file.into(), &[less], 1).unwrap();
        assert!(
            driver
                .control
                .as_ref()
                .unwrap()
                .change_memory(less)
                .is_err()
        );
        driver.command(&[4, 0, 2, 0], 1);
        assert_eq!(driver.answer(), OK);
    }

    #[test]
    fn it_goes_on_where_the_queue_is() {
        let mut content = vec![0; 0x3000];
        for at in [0x1002, 0x2002] {
            content[at..at + 2].copy_from_slice(&7_u16.to_le_bytes());
        }
        let mut driver = Driver::start(&content);
        driver.made = 7;
        driver.command(&[4, 0, 3, 0], 1);
        assert_eq!(driver.answer(), OK);
        assert_eq!(driver.asked.try_recv(), Ok(3));
    }

    proptest! {
        /// Whatever a node writes there: it can be ended.
        #[test]
        fn no_content_keeps_it_from_ending(
            content in prop::collection::vec(any::<u8>(), 0x40),
            (available, used) in any::<(u16, u16)>(),
            ring in any::<[u16; 4]>(),
        ) {
            let mut memory = vec![0; 0x4000];
            memory[..content.len()].copy_from_slice(&content);
            memory[0x1002..0x1004].copy_from_slice(&available.to_le_bytes());
            memory[0x2002..0x2004].copy_from_slice(&used.to_le_bytes());
            for (place, head) in memory[0x1004..].chunks_mut(2).zip(ring) {
                place.copy_from_slice(&(head % 8).to_le_bytes());
            }
            let driver = Driver::start(&memory);
            for _ in 0..3 {
                driver.kick();
            }
            drop(driver.control);
        }
    }
}
