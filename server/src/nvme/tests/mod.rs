//! The driver on a controller that is played.

mod played;

use proptest::prelude::*;

use self::played::{BLOCKS, Fault, Kind, Played};
use super::*;

const LIMITS: Limits = Limits {
    administration: Duration::from_millis(200),
    io: Duration::from_millis(50),
};

fn start(kind: Kind) -> (Played, Nvme<Played>) {
    let played = Played::new(kind);
    let nvme = Nvme::start(played.clone(), LIMITS, Completions::Interrupts).unwrap();
    (played, nvme)
}

fn bytes(length: usize, seed: usize) -> Vec<u8> {
    (0..length)
        .map(|at| (at * 7 + at / 251 + seed) as u8)
        .collect()
}

#[test]
fn a_disk_is_found_written_read_and_left() {
    let (played, mut nvme) = start(Kind::default());
    assert_eq!(nvme.name(), "A disk, serial-1");
    assert_eq!((nvme.block_size(), nvme.block_count()), (512, BLOCKS));
    // One page, two, and a list of the others.
    for (block, length) in [
        (0, 512),
        (1, 4096),
        (17, 8192),
        (100, 12288),
        (200, 512 << 10),
    ] {
        let written = bytes(length, block);
        nvme.write(block as u64, &written).unwrap();
        let mut read = vec![0; length];
        nvme.read(block as u64, &mut read).unwrap();
        assert_eq!(read, written);
        let at = block * 512;
        assert_eq!(played.0.borrow().disk[at..at + length], written);
    }
    nvme.flush().unwrap();
    assert_eq!(played.0.borrow().log.last(), Some(&(0, 0)));
    assert!(played.is_active());
    drop(nvme);
    assert!(played.0.borrow().was_shut_down && !played.is_active());
}

#[test]
fn a_transfer_is_cut_to_what_the_controller_takes() {
    let kind = Kind {
        transfer_shift: 1,
        ..Kind::default()
    };
    let (played, mut nvme) = start(kind);
    nvme.write(3, &bytes(20 << 10, 1)).unwrap();
    assert_eq!(played.0.borrow().log, [(1, 16), (1, 16), (1, 8)]);
}

#[test]
fn pieces_are_written_at_once_neighbours_by_one_command() {
    let (played, mut nvme) = start(Kind::default());
    let content = bytes(3 * 4096, 4);
    let pieces = [
        (8, &content[..4096]),
        (16, &content[4096..8192]),
        (40, &content[8192..8704]),
        (41, &content[8704..9216]),
        (7, &content[9216..9728]),
    ];
    nvme.write_each(&pieces).unwrap();
    let log = played.0.borrow().log.clone();
    assert_eq!(log, [(1, 16), (1, 2), (1, 1)]);
    assert_eq!(played.0.borrow().most_at_once, 3);
    for (block, piece) in pieces {
        let at = block as usize * 512;
        assert_eq!(played.0.borrow().disk[at..at + piece.len()], *piece);
    }
    // More than the queue takes at once.
    let block = bytes(512, 6);
    let many: Vec<Piece<'_>> = (0..40).map(|at| (100 + 2 * at, &block[..])).collect();
    nvme.write_each(&many).unwrap();
    assert_eq!(played.0.borrow().most_at_once, 7);
    assert_eq!(played.0.borrow().log.len(), 3 + 40);
    let mut read = vec![0; 512];
    nvme.read(178, &mut read).unwrap();
    assert_eq!(read, block);
}

#[test]
fn completions_may_come_in_any_order() {
    let (played, mut nvme) = start(Kind::default());
    played.set_fault(Fault::Late);
    let content = bytes(10 * 512, 8);
    let pieces: Vec<Piece<'_>> = (0..).step_by(2).zip(content.chunks(512)).collect();
    nvme.write_each(&pieces).unwrap();
    for (block, piece) in pieces {
        let at = block as usize * 512;
        assert_eq!(played.0.borrow().disk[at..at + 512], *piece);
    }
}

#[test]
fn the_first_piece_that_fails_is_named_after_all_are_complete() {
    let (played, mut nvme) = start(Kind::default());
    let block = [1; 512];
    played.set_fault(Fault::FailsBlock(20));
    let failed = nvme.write_each(&[(10, &block), (20, &block), (30, &block)]);
    let expected = DeviceError {
        access: Access::Write(20),
        errno: Errno::EIO,
    };
    assert_eq!(failed, Err(expected));
    assert_eq!(played.0.borrow().disk[30 * 512], 1);
    assert_eq!(nvme.write(10, &block), Ok(()));
}

#[test]
fn blocks_of_4_kib_have_their_own_numbers() {
    let kind = Kind {
        block_shift: 12,
        ..Kind::default()
    };
    let (played, mut nvme) = start(kind);
    let written = bytes(3 * 4096, 9);
    nvme.write(5, &written).unwrap();
    assert_eq!(played.0.borrow().disk[5 * 4096..8 * 4096], written);
}

#[test]
fn without_a_cache_there_is_nothing_to_flush() {
    let kind = Kind {
        has_cache: false,
        ..Kind::default()
    };
    let (played, mut nvme) = start(kind);
    nvme.flush().unwrap();
    assert!(played.0.borrow().log.is_empty());
}

#[test]
fn zeroes_are_written_where_that_is_possible() {
    let (played, mut nvme) = start(Kind::default());
    nvme.write(0, &bytes(4096, 3)).unwrap();
    nvme.write_zeroes(2, 4).unwrap();
    assert_eq!(played.0.borrow().disk[1024..3072], [0; 2048]);
    assert_ne!(played.0.borrow().disk[3072..3584], [0; 512]);
    let beyond = nvme.write_zeroes(BLOCKS, 1).unwrap_err();
    assert_eq!(beyond.errno, Errno::ENXIO);
    let kind = Kind {
        can_write_zeroes: false,
        ..Kind::default()
    };
    let refused = start(kind).1.write_zeroes(0, 1).unwrap_err();
    assert_eq!(refused.errno, Errno::EOPNOTSUPP);
}

#[test]
fn what_is_beyond_the_end_reaches_no_controller() {
    let (played, mut nvme) = start(Kind::default());
    let failed = nvme.read(BLOCKS - 1, &mut [0; 1024]).unwrap_err();
    assert_eq!(failed.errno, Errno::ENXIO);
    let failed = nvme.write(u64::MAX, &[0; 512]).unwrap_err();
    assert_eq!(failed.errno, Errno::ENXIO);
    assert_eq!(nvme.write(0, &[0; 5]).unwrap_err().errno, Errno::EINVAL);
    assert!(played.0.borrow().log.is_empty());
}

#[test]
fn a_completion_that_takes_long_interrupts() {
    let played = Played::new(Kind::default());
    played.set_fault(Fault::Late);
    let mut nvme = Nvme::start(played.clone(), LIMITS, Completions::Interrupts).unwrap();
    let written = bytes(4096, 5);
    nvme.write(0, &written).unwrap();
    assert_eq!(played.0.borrow().waits, 1);
    let mut read = vec![0; 4096];
    nvme.read(0, &mut read).unwrap();
    assert_eq!((played.0.borrow().waits, read), (2, written));
}

#[test]
fn nobody_waits_for_an_interrupt_where_completions_are_polled_or_there_is_none() {
    let silent = Kind {
        can_interrupt: false,
        ..Kind::default()
    };
    for (kind, completions) in [
        (Kind::default(), Completions::Polled),
        (silent, Completions::Interrupts),
    ] {
        let played = Played::new(kind);
        played.set_fault(Fault::Late);
        let mut nvme = Nvme::start(played.clone(), LIMITS, completions).unwrap();
        assert_eq!(nvme.flush().unwrap_err().errno, Errno::ETIMEDOUT);
        assert_eq!(played.0.borrow().waits, 0);
    }
}

/// After each of these nobody knows what it has done.
#[test]
fn a_controller_that_fails_is_stopped() {
    for (fault, errno) in [
        (Fault::Silent, Errno::ETIMEDOUT),
        (Fault::Fatal, Errno::EIO),
        (Fault::Gone, Errno::ENODEV),
        (Fault::WrongNumber, Errno::EIO),
    ] {
        let (played, mut nvme) = start(Kind::default());
        nvme.write(0, &bytes(512, 1)).unwrap();
        played.set_fault(fault);
        let failed = nvme.write(1, &bytes(512, 2)).unwrap_err();
        assert_eq!(failed.errno, errno, "{fault:?}");
        played.set_fault(Fault::None);
        assert!(!played.0.borrow().has_dma, "{fault:?}");
        assert_eq!(nvme.read(0, &mut [0; 512]).unwrap_err().errno, Errno::EIO);
        assert_eq!(nvme.flush().unwrap_err().errno, Errno::EIO);
    }
}

#[test]
fn a_command_that_fails_is_reported_and_others_go_on() {
    let (played, mut nvme) = start(Kind::default());
    for (status, errno) in [
        ((2, 0x81), Errno::EIO),
        ((0, 0x80), Errno::ENXIO),
        ((0, 0x20), Errno::EROFS),
    ] {
        played.set_fault(Fault::Status(status.0, status.1));
        let failed = nvme.write(8, &bytes(512, 2)).unwrap_err();
        assert_eq!((failed.access, failed.errno), (Access::Write(8), errno));
        played.set_fault(Fault::None);
        nvme.write(8, &bytes(512, 2)).unwrap();
    }
}

#[test]
fn what_is_not_supported_is_refused() {
    let usual = Kind::default();
    for kind in [
        Kind {
            metadata: 8,
            ..usual
        },
        Kind {
            block_shift: 13,
            ..usual
        },
        Kind {
            namespaces: 0,
            ..usual
        },
    ] {
        let played = Played::new(kind);
        let refused = Nvme::start(played.clone(), LIMITS, Completions::Interrupts).unwrap_err();
        assert!(matches!(refused, Error::Unsupported(_)), "{refused}");
        assert!(!played.is_active());
    }
    let played = Played::new(usual);
    played.set_fault(Fault::NeverReady);
    let refused = Nvme::start(played.clone(), LIMITS, Completions::Interrupts).unwrap_err();
    assert_eq!(refused, Error::TimedOut("start"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    /// Whatever is written where, and however often the queues go round.
    #[test]
    fn what_was_written_is_read(
        steps in prop::collection::vec((0..BLOCKS - 64, 1..64_usize, any::<u8>(), any::<bool>()), 1..60),
        entries in 2..40_u16,
        transfer_shift in 0..9_u8,
    ) {
        let kind = Kind { entries, transfer_shift: transfer_shift.max(1), ..Kind::default() };
        let (_, mut nvme) = start(kind);
        let mut expected = vec![0; BLOCKS as usize * 512];
        for (block, count, seed, is_write) in steps {
            let range = block as usize * 512..(block as usize + count) * 512;
            if is_write {
                let written = bytes(range.len(), seed.into());
                let pieces: Vec<Piece<'_>> = (block..).step_by(3).zip(written.chunks(3 * 512)).collect();
                let (first, second) = pieces.split_at(pieces.len() / 3);
                nvme.write_each(&[second, first].concat()).unwrap();
                expected[range].copy_from_slice(&written);
            } else {
                let mut read = vec![1; range.len()];
                nvme.read(block, &mut read).unwrap();
                prop_assert_eq!(&read, &expected[range]);
            }
        }
    }
}
