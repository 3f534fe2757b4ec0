//! The AnT paper's placements of application (A), file server (F), block server (B) and disk driver (D).

/// Who has which core of the node, by its own numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Placement {
    /// The core of the application.
    pub(super) program: &'static str,
    /// Those of the file server: several if it has shards.
    pub(super) file: &'static str,
    /// The core of the block server.
    pub(super) block: &'static str,
    /// The core of the disk driver.
    pub(super) disk: &'static str,
}

const fn placement([program, file, block, disk]: [&'static str; 4]) -> Placement {
    Placement {
        program,
        file,
        block,
        disk,
    }
}

/// Number of placements.
pub(super) const COUNT: usize = 15;
/// The paper's, each by its number less one. The order of cores is A, F, B, D.
pub(super) const ALL: [Placement; COUNT] = [
    placement(["0", "0", "0", "0"]),
    placement(["0", "0", "0", "1"]),
    placement(["0", "0", "1", "0"]),
    placement(["0", "1", "0", "0"]),
    placement(["0", "0", "1", "1"]),
    placement(["0", "1", "0", "1"]),
    placement(["0", "1", "1", "0"]),
    placement(["0", "1", "1", "1"]),
    placement(["0", "0", "1", "2"]),
    placement(["0", "1", "0", "2"]),
    placement(["0", "1", "2", "0"]),
    placement(["0", "1", "1", "2"]),
    placement(["0", "1", "2", "1"]),
    placement(["0", "2", "1", "1"]),
    placement(["0", "1", "2", "3"]),
];
/// All on one core: the first.
pub(super) const ONE_CORE: usize = 0;
/// Those of which the paper reports slopes: #1, #3, #4, #7, #11 and #15. All others differ from one of these
/// by the core of a driver that has nothing to do while blocks are cached.
pub(super) const REPORTED: [usize; 6] = [0, 2, 3, 6, 10, 14];
/// All, by their numbers less one.
pub(super) const EACH: [usize; COUNT] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14];
/// A text for each placement.
pub(super) type Texts = [&'static str; COUNT];

/// Texts for each placement, around its number.
macro_rules! numbered {
    ($before:literal, $after:literal) => {
        $crate::benchmark::ant::placement::texts!($before, $after:
            "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15")
    };
}

/// Texts for each placement, around its name.
macro_rules! named {
    ($before:literal, $after:literal) => {
        $crate::benchmark::ant::placement::texts!($before, $after:
            "#1 AFBD", "#2 AFB | D", "#3 AFD | B", "#4 ABD | F", "#5 AF | BD", "#6 AB | FD", "#7 AD | FB", "#8 A | FBD",
            "#9 AF | B | D", "#10 AB | F | D", "#11 AD | F | B", "#12 A | FB | D", "#13 A | FD | B", "#14 A | BD | F",
            "#15 A | F | B | D")
    };
}

macro_rules! texts {
    ($before:literal, $after:literal: $($text:literal),+) => {
        [$(concat!($before, $text, $after)),+]
    };
}

pub(super) use {named, numbered, texts};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_who_has_which_core() {
        const NAMES: Texts = named!("", "");
        for (name, placement) in NAMES.iter().zip(ALL) {
            let (_, cores) = name.split_once(' ').unwrap();
            for (core, who) in cores.split(" | ").enumerate() {
                for one in who.chars() {
                    let place = match one {
                        'A' => placement.program,
                        'F' => placement.file,
                        'B' => placement.block,
                        _ => placement.disk,
                    };
                    assert_eq!(place, core.to_string(), "{one} of {name}");
                }
            }
        }
    }
}
