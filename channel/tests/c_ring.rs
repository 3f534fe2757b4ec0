//! The C implementation (`kmod/channel/ring.c`), compiled for the host, against the Rust one in another
//! process.

#![cfg(not(loom))]
#![allow(unsafe_code, reason = "memory shared with another process")]

use std::fs::File;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use insula_abi::channel::{Pages, Right, rings_size};
use insula_channel::{Consumer, Message, Producer, Received, Ring, SendError, SharedWords};
use nix::sys::mman::{MapFlags, ProtFlags, mmap};

/// Kernel headers that `ring.c` includes, empty here; `kernel.h` has the needed definitions.
const KERNEL_HEADERS: [&str; 4] = [
    "linux/compiler.h",
    "linux/export.h",
    "linux/minmax.h",
    "asm/barrier.h",
];
const LAST: u8 = 255;
const SLEPT: u8 = 254;

fn compile(folder: &Path) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let own = here.join("tests/c_ring");
    for header in KERNEL_HEADERS {
        let path = folder.join(header);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "").unwrap();
    }
    let program = folder.join("echo");
    let compiled = Command::new("cc")
        .args([
            "-std=gnu11",
            "-O2",
            "-Wall",
            "-Wextra",
            "-Wno-pointer-arith",
            "-Werror",
        ])
        .arg("-I")
        .arg(folder)
        .arg("-I")
        .arg(here.join("../abi/include"))
        .arg("-I")
        .arg(here.join("../kmod"))
        .arg("-include")
        .arg(own.join("kernel.h"))
        .arg(own.join("echo.c"))
        .arg(here.join("../kmod/channel/ring.c"))
        .arg("-o")
        .arg(&program)
        .status()
        .expect("the C compiler `cc` is needed");
    assert!(compiled.success());
    program
}

/// The Rust ends and the process with the C ends.
struct Pair {
    producer: Producer<SharedWords>,
    consumer: Consumer<SharedWords>,
    echo: Child,
}

fn pair(folder: &Path, slots: u32) -> Pair {
    let path = folder.join("memory");
    let file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&path)
        .unwrap();
    file.set_len(rings_size(slots)).unwrap();
    let size = NonZeroUsize::new(rings_size(slots) as usize).unwrap();
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a new mapping, never unmapped.
    let start = unsafe { mmap(None, size, protection, MapFlags::MAP_SHARED, &file, 0) }.unwrap();
    // SAFETY: mapped above, and only accessed through this value.
    let words = unsafe { SharedWords::new(start.as_ptr().cast(), size.get() / 8) };
    let ring = |control, first| Ring::new(words, control, first, slots).unwrap();
    let echo = Command::new(compile(folder))
        .arg(&path)
        .arg(slots.to_string())
        .spawn()
        .unwrap();
    Pair {
        producer: Producer::new(ring(0, 512)),
        consumer: Consumer::new(ring(16, 512 + 8 * slots as usize)),
        echo,
    }
}

impl Pair {
    fn send(&mut self, message: &Message) {
        loop {
            match self.producer.send(message) {
                Ok(_) => return,
                Err(SendError::Full) => std::thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn receive(&mut self, buffer: &mut [u8]) -> Received {
        loop {
            if let Some(received) = self.consumer.receive(buffer).unwrap() {
                return received;
            }
            assert_eq!(self.echo.try_wait().unwrap(), None, "the C program ended");
            std::thread::yield_now();
        }
    }
}

#[test]
fn c_and_rust_are_compatible() {
    const SLOTS: u32 = 64;
    let folder = tempfile::tempdir().unwrap();
    let mut pair = pair(folder.path(), SLOTS);
    let pages = [Pages {
        start: 0xabc_d000,
        count: 3,
        right: Right::UNTIL_REPLY,
    }; 5];
    let largest = SLOTS as usize * 56 - size_of_val(&pages);
    let mut buffer = [0; SLOTS as usize * 56];
    // Four messages in flight, so that the ring wraps at all places; then messages of maximum size.
    for round in 0..3000 {
        let sizes = [0, 1, 8, 55].map(|more| (round * 3 + more) % 700);
        let messages = sizes.map(|size| {
            (0..size)
                .map(|byte| (byte * 7 + round) as u8)
                .collect::<Vec<_>>()
        });
        for (index, bytes) in messages.iter().enumerate() {
            pair.send(&Message {
                kind: index as u8,
                pages: &pages[..round % 6],
                bytes,
            });
        }
        for (index, bytes) in messages.iter().enumerate() {
            let received = pair.receive(&mut buffer);
            assert_eq!(usize::from(received.kind), index);
            assert_eq!(received.bytes(&buffer), bytes);
            assert_eq!(
                received.pages(&buffer).collect::<Vec<_>>(),
                pages[..round % 6]
            );
        }
    }
    let bytes = vec![0x5a; largest];
    pair.send(&Message {
        kind: 1,
        pages: &pages,
        bytes: &bytes,
    });
    assert_eq!(pair.receive(&mut buffer).bytes(&buffer), bytes);

    // It detects a sleeping peer at the exact message.
    for asleep in [true, false] {
        if asleep {
            assert!(pair.consumer.prepare_to_sleep());
        }
        pair.send(&Message::bytes(1, b"wake up"));
        pair.receive(&mut buffer);
        pair.consumer.stay_awake();
        pair.send(&Message::bytes(SLEPT, &[0]));
        let received = pair.receive(&mut buffer);
        assert_eq!(received.bytes(&buffer), [u8::from(asleep)]);
    }
    pair.send(&Message::bytes(LAST, &[]));
    pair.receive(&mut buffer);
    assert!(pair.echo.wait().unwrap().success());
}
