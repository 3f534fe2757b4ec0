//! What a task wants of the machine that only QEMU can do. It prints a line for each.

/// A wish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// A core is told of an error of the hardware that concerns others.
    MachineCheck {
        /// Its number.
        core: u32,
    },
}

/// What a line with a wish begins with.
const MACHINE_CHECK: &str = "testbed: machine check of core ";

impl Wish {
    /// The line to be printed.
    #[must_use]
    pub fn to_line(self) -> String {
        match self {
            Self::MachineCheck { core } => format!("{MACHINE_CHECK}{core}"),
        }
    }

    fn parse(line: &[u8]) -> Option<Self> {
        let line = std::str::from_utf8(line).ok()?.trim_end();
        let core = line.strip_prefix(MACHINE_CHECK)?.parse().ok()?;
        Some(Self::MachineCheck { core })
    }
}

/// Finds wishes in what a task prints.
#[derive(Default)]
pub(super) struct Wishes {
    /// A line that has not ended yet.
    line: Vec<u8>,
}

impl Wishes {
    /// Those in lines that end in a piece of the output.
    pub(super) fn read(&mut self, piece: &[u8]) -> Vec<Wish> {
        let mut wishes = Vec::new();
        for &byte in piece {
            if byte == b'\n' {
                wishes.extend(Wish::parse(&self.line));
                self.line.clear();
            } else {
                self.line.push(byte);
            }
        }
        wishes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wishes_are_found_however_the_output_is_cut() {
        let wanted = [
            Wish::MachineCheck { core: 3 },
            Wish::MachineCheck { core: 12 },
        ];
        let mut text = "a line\n".to_owned();
        for wish in wanted {
            // As a console writes lines.
            text += &format!("{}\r\nanother\n", wish.to_line());
        }
        for cut in 0..text.len() {
            let (first, second) = text.as_bytes().split_at(cut);
            let mut wishes = Wishes::default();
            let found = [wishes.read(first), wishes.read(second)].concat();
            assert_eq!(found, wanted, "cut at {cut}");
        }
    }

    #[test]
    fn other_lines_are_none() {
        let lines =
            b"testbed: machine check of core x\nsaid: testbed: machine check of core 1\n\xff\n";
        assert_eq!(Wishes::default().read(lines), []);
    }
}
