//! Requests of a task that only QEMU can fulfil: the task prints a line for each.

/// Request of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostRequest {
    /// Inject a machine check into a core.
    MachineCheck {
        /// Number of the core.
        core: u32,
    },
}

/// Start of a line with the request.
const MACHINE_CHECK: &str = "testbed: machine check of core ";

impl HostRequest {
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

/// Finds requests in the output of a task.
#[derive(Default)]
pub(super) struct HostRequestParser {
    /// The current line, not yet ended.
    line: Vec<u8>,
}

impl HostRequestParser {
    /// Requests in the lines that end in this piece of the output.
    pub(super) fn read(&mut self, piece: &[u8]) -> Vec<HostRequest> {
        let mut requests = Vec::new();
        for &byte in piece {
            if byte == b'\n' {
                requests.extend(HostRequest::parse(&self.line));
                self.line.clear();
            } else {
                self.line.push(byte);
            }
        }
        requests
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_found_however_the_output_is_split() {
        let wanted = [
            HostRequest::MachineCheck { core: 3 },
            HostRequest::MachineCheck { core: 12 },
        ];
        let mut text = "a line\n".to_owned();
        for request in wanted {
            // Consoles end lines so.
            text += &format!("{}\r\nanother\n", request.to_line());
        }
        for cut in 0..text.len() {
            let (first, second) = text.as_bytes().split_at(cut);
            let mut requests = HostRequestParser::default();
            let found = [requests.read(first), requests.read(second)].concat();
            assert_eq!(found, wanted, "cut at {cut}");
        }
    }

    #[test]
    fn other_lines_are_none() {
        let lines =
            b"testbed: machine check of core x\nsaid: testbed: machine check of core 1\n\xff\n";
        assert_eq!(HostRequestParser::default().read(lines), []);
    }
}
