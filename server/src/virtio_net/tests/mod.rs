//! The driver on a card that is played.

mod played;

use self::played::{CARD, COMMON, DISTANCE, Fault, NOTIFY, Played};
use super::*;

const LAYOUT: Layout = Layout {
    common: COMMON,
    notify: NOTIFY,
    notify_distance: DISTANCE,
    card: CARD,
};

fn start(fault: Fault) -> (Played, Result<VirtioNet<Played>, Error>) {
    let played = Played::default();
    played.0.borrow_mut().fault = fault;
    (played.clone(), VirtioNet::start(played, LAYOUT))
}

fn frame(number: usize) -> Vec<u8> {
    (0..60 + number % 1400)
        .map(|at| (at + number) as u8)
        .collect()
}

#[test]
fn frames_are_sent_and_arrive() {
    let (played, card) = start(Fault::None);
    let mut card = card.unwrap();
    assert_eq!(card.address(), [2, 0, 0, 0, 0, 9]);
    let mut received = Vec::new();
    assert_eq!(card.receive(&mut received), Ok(false));
    // More than there are descriptors, in parts.
    for part in 0..20 {
        for number in 0..50 {
            assert!(card.has_room());
            card.send(&frame(part * 50 + number));
        }
        card.flush().unwrap();
        for number in 0..50 {
            assert_eq!(card.receive(&mut received), Ok(true));
            assert_eq!(received, frame(part * 50 + number));
        }
        assert_eq!(card.receive(&mut received), Ok(false));
        card.flush().unwrap();
    }
    card.check().unwrap();
    drop(card);
    let world = played.0.borrow();
    assert_eq!((world.status, world.has_dma), (0, false));
}

#[test]
fn a_frame_that_is_expected_interrupts() {
    let (played, card) = start(Fault::None);
    let mut card = card.unwrap();
    assert!(card.can_interrupt());
    let interrupts = || played.0.borrow().interrupts;
    card.send(&frame(0));
    card.flush().unwrap();
    assert!(!card.expect_interrupt(true), "it is there already");
    assert!(!card.expect_interrupt(false));
    assert_eq!(card.receive(&mut Vec::new()), Ok(true));
    assert!(card.expect_interrupt(true));
    assert_eq!(interrupts(), 0);
    card.send(&frame(1));
    card.flush().unwrap();
    assert_eq!(interrupts(), 1);
    assert!(!card.expect_interrupt(false));
    card.send(&frame(2));
    card.flush().unwrap();
    assert_eq!(interrupts(), 1);
    assert!(!start(Fault::NoMessages).1.unwrap().can_interrupt());
}

#[test]
fn what_does_not_fit_is_lost() {
    let (_, card) = start(Fault::None);
    let mut card = card.unwrap();
    for number in 0..usize::from(ENTRIES) + 10 {
        card.send(&frame(number));
    }
    assert!(!card.has_room());
    card.flush().unwrap();
    assert!(card.has_room());
}

#[test]
fn cards_that_cannot_be_used_are_refused() {
    for (fault, error) in [
        (
            Fault::Legacy,
            Error::Unsupported("it lacks a feature that the driver needs"),
        ),
        (
            Fault::Refuses,
            Error::Unsupported("it refuses the driver's features"),
        ),
        (Fault::Stuck, Error::TimedOut("reset")),
    ] {
        assert_eq!(start(fault).1.err(), Some(error));
    }
}

#[test]
fn cards_that_make_no_sense_are_not_used_any_more() {
    for (fault, error) in [
        (Fault::WrongNumber, Error::Malformed("a used descriptor")),
        (Fault::WrongLength, Error::Malformed("a used descriptor")),
    ] {
        let (_, card) = start(fault);
        let mut card = card.unwrap();
        card.send(&frame(0));
        card.flush().unwrap();
        assert_eq!(card.receive(&mut Vec::new()), Err(error));
    }
    let (_, card) = start(Fault::NeedsReset);
    let mut card = card.unwrap();
    card.send(&frame(0));
    card.flush().unwrap();
    assert_eq!(card.check(), Err(Error::Failed));
}

/// Configuration space with capabilities, as (offset, type, BAR, offset in it).
fn layout(all: &[(u64, u32, u32, u32)]) -> Result<Layout, Error> {
    Layout::read(|at| {
        let first = all.first().map_or(0, |(at, ..)| *at as u32);
        let index = all
            .iter()
            .position(|(start, ..)| (*start..start + 20).contains(&at));
        let Some(index) = index else {
            return Ok(if at == 0x34 { first } else { 0 });
        };
        let (start, kind, bar, offset) = all[index];
        let next = all.get(index + 1).map_or(0, |(at, ..)| *at as u32);
        Ok(match at - start {
            0 => 9 | next << 8 | kind << 24,
            4 => bar,
            8 => offset,
            16 => 4,
            _ => 0x1000,
        })
    })
}

#[test]
fn registers_are_found() {
    let usual = [
        (0x84, 1, 4, 0),
        (0x98, 3, 1, 0x1000),
        (0x70, 4, 4, 0x2000),
        (0x40, 2, 4, 0x3000),
    ];
    let found = Layout {
        common: 0,
        notify: 0x3000,
        notify_distance: 4,
        card: 0x2000,
    };
    assert_eq!(layout(&usual), Ok(found));
    let missing = Error::Unsupported("it has no registers of virtio 1.0");
    assert_eq!(layout(&usual[..3]), Err(missing));
    assert_eq!(layout(&[]), Err(missing));
    let elsewhere = [(0x84, 1, 2, 0)];
    assert_eq!(
        layout(&elsewhere),
        Err(Error::Unsupported("its registers are not in BAR 4"))
    );
    let circle = Layout::read(|_| Ok(0x40 | 0x40 << 8));
    assert_eq!(
        circle,
        Err(Error::Malformed("its capabilities have no end"))
    );
}
