//! Timers of `timerfd_create(2)` that expire again and again. One that has expired and was not read since has no
//! time left for the kernel (`fs/timerfd.c`), and CRIU writes that to its images: restored, it would never
//! expire again. So its time left becomes the shortest that there is.
//!
//! The image has two numbers of its kind, and messages, each after its length; these are protobuf (protobuf.dev,
//! "Encoding"; CRIU: `images/fdinfo.proto`, `images/timerfd.proto`).

use std::fs;
use std::io;
use std::ops::Range;
use std::path::Path;

/// Image of all open files, and the bytes of the numbers that it begins with.
const IMAGE: &str = "files.img";
const KIND: usize = 8;
/// Field of a file that is such a timer.
const TIMER: u64 = 12;
/// Fields of a timer: seconds and nanoseconds that are left, and those of its interval.
const LEFT: [u64; 2] = [7, 8];
const INTERVAL: [u64; 2] = [9, 10];

/// Has timers of images in this folder expire again.
pub(super) fn rearm(images: &Path) -> io::Result<()> {
    let path = images.join(IMAGE);
    let mut content = fs::read(&path)?;
    let expired = expired(&content).ok_or_else(|| io::Error::other("an image of no known form"))?;
    if expired.is_empty() {
        return Ok(());
    }
    for nanoseconds in expired {
        content[nanoseconds] = 1;
    }
    fs::write(path, content)
}

/// Where the nanoseconds are of timers that expire again and again, and have no time left; none if it is no
/// such image.
fn expired(content: &[u8]) -> Option<Vec<usize>> {
    let mut found = Vec::new();
    let mut at = KIND;
    while at < content.len() {
        let length = content.get(at..at + 4)?.try_into().ok()?;
        let file = at + 4..(at + 4).checked_add(u32::from_le_bytes(length) as usize)?;
        at = file.end;
        let timers = fields(content, file)?.into_iter();
        for (_, timer) in timers.filter(|(field, _)| *field == TIMER) {
            let Place::Bytes(timer) = timer else {
                return None;
            };
            let nanoseconds = without_time(&fields(content, timer)?);
            // Zero takes a byte, as 1 does.
            found.extend(nanoseconds.filter(|&at| content[at] == 0));
        }
    }
    Some(found)
}

/// Where the nanoseconds of a timer are if it expires again and again, and has no time left.
fn without_time(timer: &[(u64, Place)]) -> Option<usize> {
    let number = |wanted| {
        timer.iter().find_map(|(field, place)| match place {
            Place::Number { value, at } if *field == wanted => Some((*value, *at)),
            _ => None,
        })
    };
    let is_zero = |field| number(field).is_none_or(|(value, _)| value == 0);
    let has_expired = LEFT.into_iter().all(is_zero) && !INTERVAL.into_iter().all(is_zero);
    number(LEFT[1]).filter(|_| has_expired).map(|(_, at)| at)
}

/// A field's value, or where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Number { value: u64, at: usize },
    Bytes(Range<usize>),
    Fixed,
}

/// The fields of a message, by their numbers.
fn fields(content: &[u8], message: Range<usize>) -> Option<Vec<(u64, Place)>> {
    let mut found = Vec::new();
    let mut at = message.start;
    let content = content.get(..message.end)?;
    while at < message.end {
        let key = number(content, &mut at)?;
        let begin = at;
        let place = match key & 7 {
            0 => Place::Number {
                value: number(content, &mut at)?,
                at: begin,
            },
            2 => {
                let length = usize::try_from(number(content, &mut at)?).ok()?;
                let begin = at;
                at = at.checked_add(length)?;
                Place::Bytes(begin..at)
            }
            1 => skip(&mut at, 8),
            5 => skip(&mut at, 4),
            _ => return None,
        };
        found.push((key >> 3, place));
    }
    (at == message.end).then_some(found)
}

fn skip(at: &mut usize, bytes: usize) -> Place {
    *at += bytes;
    Place::Fixed
}

/// A number in groups of seven bits, the lowest first.
fn number(content: &[u8], at: &mut usize) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let byte = *content.get(*at)?;
        *at += 1;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// An image with a file of another kind, and a timer with this time left and this interval.
    fn image(left_ns: u8, interval_ns: u8) -> Vec<u8> {
        // An eventfd, then the timer: id, flags, owner, clock, ticks, flags, times.
        let other = [8, 6, 16, 1, 66, 2, 8, 1];
        let timer = [8, 3, 16, 2, 26, 2, 8, 0, 32, 1, 40, 9, 48, 0];
        let times = [56, 0, 64, left_ns, 72, 0, 80, interval_ns];
        let timer = [&timer[..], &times].concat();
        let file = [&[8, 17, 16, 3, 98, timer.len() as u8], &timer[..]].concat();
        let mut image = vec![0; KIND];
        for file in [&other[..], &file] {
            image.extend((file.len() as u32).to_le_bytes());
            image.extend(file);
        }
        image
    }

    #[test]
    fn only_what_has_expired_and_would_again_is_armed() {
        for (left, interval, armed) in [(0, 100, 1), (0, 0, 0), (7, 100, 7), (7, 0, 7)] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join(IMAGE);
            fs::write(&path, image(left, interval)).unwrap();
            rearm(folder.path()).unwrap();
            let found = fs::read(&path).unwrap();
            assert_eq!(found, image(armed, interval), "{left} {interval}");
        }
    }

    #[test]
    fn what_is_cut_off_is_refused() {
        let image = image(0, 100);
        for end in KIND + 1..image.len() {
            let whole = expired(&image[..end]);
            // After the first of the two files it is an image of one.
            assert!(whole.is_none_or(|found| found.is_empty()), "{end}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(content in proptest::collection::vec(any::<u8>(), 0..200)) {
            for at in expired(&content).unwrap_or_default() {
                prop_assert!(content[at] == 0);
            }
        }
    }
}
