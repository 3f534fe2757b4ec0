//! Files that are whole, and those that are not.

use std::io::Cursor;

use proptest::prelude::*;

use super::*;

impl Content for Vec<u8> {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OutOfRange> {
        into.copy_from_slice(&self[offset as usize..][..into.len()]);
        Ok(())
    }
}

/// A page is all of one byte.
fn memory(pages: &[u8]) -> Vec<u8> {
    let pages = pages.iter().map(|&byte| [byte; PAGE as usize]);
    pages.collect::<Vec<_>>().concat()
}

fn written(description: &[u8], memory: &Vec<u8>) -> Vec<u8> {
    let mut file = Cursor::new(Vec::new());
    let image = Saved {
        description,
        content: memory,
        size: memory.len() as u64,
        working_set: &[],
    };
    write(&mut file, &image).unwrap();
    file.into_inner()
}

/// A file of three pages with that working set, by pages.
fn with_working_set(set: &[(u64, u64)]) -> Vec<u8> {
    let mut file = Cursor::new(Vec::new());
    let set: Vec<_> = set
        .iter()
        .map(|&(page, pages)| Extent {
            offset: page * PAGE,
            size: pages * PAGE,
        })
        .collect();
    let image = Saved {
        description: b"text",
        content: &memory(&[1, 0, 2]),
        size: 3 * PAGE,
        working_set: &set,
    };
    write(&mut file, &image).unwrap();
    file.into_inner()
}

/// Description and memory of a file.
fn read(file: &[u8]) -> Result<(Vec<u8>, Vec<u8>), FileError> {
    let reader = Reader::open(file, file.len() as u64)?;
    let description = reader.description.clone();
    // A file may say any size of memory: only its extents are kept here.
    let mut memory = vec![0; reader.size.min(1 << 20) as usize];
    reader.read_content(|offset, bytes| {
        let to = memory
            .get_mut(offset as usize..)
            .and_then(|to| to.get_mut(..bytes.len()));
        to.ok_or(OutOfRange {
            at: offset,
            size: bytes.len() as u64,
        })?
        .copy_from_slice(bytes);
        Ok(())
    })?;
    Ok((description, memory))
}

#[test]
fn zeros_are_left_out() {
    let memory = memory(&[0, 1, 1, 0, 2, 0, 0]);
    let file = written(b"text", &memory);
    assert_eq!(file.len() as u64, HEADER + 4 + 2 * ENTRY + 3 * PAGE);
    assert_eq!(read(&file).unwrap(), (b"text".to_vec(), memory));
}

#[test]
fn other_files_are_told_apart() {
    let refused = |file: &[u8]| read(file).unwrap_err().to_string();
    assert_eq!(refused(b""), "it is not an image of Insula");
    assert_eq!(refused(&[7; 1000]), "it is not an image of Insula");
    let mut newer = written(b"text", &memory(&[1]));
    newer[8] = 3;
    assert_eq!(refused(&newer), "its version is 3, not 2");
}

#[test]
fn sizes_beyond_the_file_allocate_nothing() {
    let whole = written(b"text", &memory(&[1, 0, 2]));
    // Of the description, of both lists of extents, and an extent's.
    for (at, size) in [(12, 4), (24, 8), (32, 8), (72 + 4 + 8, 8)] {
        let mut file = whole.clone();
        file[at..at + size].fill(0xff);
        assert!(matches!(read(&file), Err(FileError::Size)), "{at}");
    }
}

#[test]
fn extents_that_overlap_are_refused() {
    let mut file = written(b"", &memory(&[1, 0, 2]));
    let second = HEADER as usize + ENTRY as usize;
    file[second..second + 8].fill(0);
    assert!(matches!(read(&file), Err(FileError::Size)));
}

#[test]
fn a_working_set_is_within_the_memory_and_bounded() {
    let file = with_working_set(&[(0, 1), (2, 1)]);
    let reader = Reader::open(&file[..], file.len() as u64).unwrap();
    let pages: Vec<_> = reader
        .working_set
        .iter()
        .map(|one| one.offset / PAGE)
        .collect();
    assert_eq!(pages, [0, 2]);
    assert!(read(&file).is_ok());
    for wrong in [
        &[(1, 3)][..],
        &[(2, 1), (0, 1)],
        &[(0, 2), (1, 1)],
        &[(1, 0)],
    ] {
        assert!(
            matches!(read(&with_working_set(wrong)), Err(FileError::Size)),
            "{wrong:?}"
        );
    }
}

#[test]
fn a_working_set_has_no_more_pages_than_the_module_takes() {
    let image = |pages: u64| {
        let mut file = Cursor::new(Vec::new());
        let set = [Extent {
            offset: 0,
            size: pages * PAGE,
        }];
        let memory = vec![0; (WORKING_SET_MAX + 1) as usize * PAGE as usize];
        let image = Saved {
            description: b"",
            content: &memory,
            size: memory.len() as u64,
            working_set: &set,
        };
        write(&mut file, &image).unwrap();
        let file = file.into_inner();
        Reader::open(&file[..], file.len() as u64).map(|reader| reader.working_set.len())
    };
    assert_eq!(image(WORKING_SET_MAX).unwrap(), 1);
    assert!(matches!(image(WORKING_SET_MAX + 1), Err(FileError::Size)));
}

fn pages() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(0_u8..3, 0..150)
}

proptest! {
    #[test]
    fn what_is_written_is_read(pages in pages(), text in ".{0,100}") {
        let memory = memory(&pages);
        let file = written(text.as_bytes(), &memory);
        prop_assert_eq!(read(&file).unwrap(), (text.into_bytes(), memory));
    }

    #[test]
    fn one_changed_bit_is_noticed(pages in pages(), at in any::<prop::sample::Index>(), bit in 0_u8..8) {
        let mut file = written(b"description", &memory(&pages));
        let at = at.index(file.len());
        file[at] ^= 1_u8 << bit;
        prop_assert!(read(&file).is_err());
    }

    #[test]
    fn a_file_of_another_length_is_refused(
        pages in pages(),
        at in any::<prop::sample::Index>(),
        more in proptest::collection::vec(any::<u8>(), 1..100),
    ) {
        let file = written(b"description", &memory(&pages));
        prop_assert!(read(&file[..at.index(file.len())]).is_err());
        let longer = [file, more].concat();
        prop_assert!(matches!(read(&longer), Err(FileError::Size)));
    }

    #[test]
    fn wild_bytes_never_panic(
        head in any::<bool>(),
        rest in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        let start = if head { facts(0, 1 << 40, 1, 0)[..12].to_vec() } else { Vec::new() };
        prop_assert!(read(&[start, rest].concat()).is_err());
    }
}
