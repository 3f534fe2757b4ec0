//! What `/proc` says of a process.

use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use insula_abi::running::{self, Timer, Vma};

use crate::failure::{Failure, Obstacle};
use crate::state::Scheduling;

/// End of a process's addresses; what lies above is the kernel's, as the vsyscall page.
const ADDRESS_END: u64 = 0x7fff_ffff_f000;

/// A process in `/proc`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process {
    pub(crate) pid: i32,
}

/// A mapping of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) vma: Vma,
    /// As `/proc` names it.
    pub(crate) name: String,
}

impl Process {
    fn path(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{name}", self.pid))
    }

    fn read(&self, name: &str) -> Result<String, Failure> {
        let path = self.path(name);
        let failed = Failure::of(format!("reading {}", path.display()));
        let bytes = fs::read(&path).map_err(failed)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Its status.
    pub(crate) fn status(&self) -> Result<Status, Failure> {
        self.read("status").map(Status)
    }

    /// The status of one of its threads.
    pub(crate) fn thread_status(&self, thread: i32) -> Result<Status, Failure> {
        self.read(&format!("task/{thread}/status")).map(Status)
    }

    /// Ids of its threads.
    pub(crate) fn threads(&self) -> Result<Vec<i32>, Failure> {
        let failed = || Failure::of("listing its threads");
        let mut all = Vec::new();
        for entry in fs::read_dir(self.path("task")).map_err(failed())? {
            let name = entry.map_err(failed())?.file_name();
            all.extend(name.to_str().and_then(|name| name.parse::<i32>().ok()));
        }
        Ok(all)
    }

    /// Its mappings, ascending.
    pub(crate) fn mappings(&self) -> Result<Vec<Mapping>, Failure> {
        let text = self.read("smaps")?;
        mappings(&text).ok_or_else(|| Failure::invalid("reading its mappings", "it is malformed"))
    }

    /// Its POSIX timers.
    pub(crate) fn timers(&self) -> Result<Vec<Timer>, Failure> {
        match self.path("timers").exists() {
            true => self.read("timers").map(|text| timers(&text)),
            false => Ok(Vec::new()),
        }
    }

    /// Signals that its signalfds read: bit number - 1 of each.
    pub(crate) fn signals_of_fds(&self) -> Result<u64, Failure> {
        let failed = Failure::of("listing its descriptors");
        let mut all = 0;
        for entry in fs::read_dir(self.path("fdinfo")).map_err(failed)?.flatten() {
            // One that is not a signalfd has no such line.
            let text = fs::read_to_string(entry.path()).unwrap_or_default();
            let masks = text
                .lines()
                .filter_map(|line| line.strip_prefix("sigmask:"));
            all |= masks
                .filter_map(|mask| u64::from_str_radix(mask.trim(), 16).ok())
                .fold(0, |all, mask| all | mask);
        }
        Ok(all)
    }

    /// Its auxiliary vector.
    pub(crate) fn auxiliary_vector(&self) -> Result<Vec<u8>, Failure> {
        fs::read(self.path("auxv")).map_err(Failure::of("reading its auxiliary vector"))
    }

    /// The path of the file that it executes; empty if there is none any more.
    pub(crate) fn executable(&self) -> Vec<u8> {
        let path = fs::read_link(self.path("exe")).unwrap_or_default();
        path.into_os_string().into_vec()
    }

    /// The processor time of one of its threads so far, in ns, and how it is scheduled.
    pub(crate) fn thread_scheduling(&self, thread: i32) -> Result<(u64, Scheduling), Failure> {
        let text = self.read(&format!("task/{thread}/stat"))?;
        let malformed = || Failure::invalid("reading a thread's status", "it is malformed");
        scheduling(&text).ok_or_else(malformed)
    }

    /// Start of its heap.
    pub(crate) fn heap_start(&self) -> Result<u64, Failure> {
        let text = self.read("stat")?;
        heap_start(&text).ok_or_else(|| Failure::invalid("reading its status", "it is malformed"))
    }

    /// Whether its address space is limited.
    pub(crate) fn has_address_limit(&self) -> Result<bool, Failure> {
        let text = self.read("limits")?;
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("Max address space"));
        Ok(line.is_some_and(|line| line.split_whitespace().next() != Some("unlimited")))
    }

    /// The highest number that a descriptor of it can have.
    pub(crate) fn last_descriptor(&self) -> Result<u64, Failure> {
        let text = self.read("limits")?;
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("Max open files"));
        let soft = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        Ok(soft.unwrap_or(u64::from(u32::MAX)).saturating_sub(1))
    }

    /// Its memory.
    pub(crate) fn memory(&self) -> Result<Memory, Failure> {
        let mut options = File::options();
        let file = options.read(true).write(true).open(self.path("mem"));
        file.map(Memory).map_err(Failure::of("opening its memory"))
    }
}

/// The memory of a process.
#[derive(Debug)]
pub(crate) struct Memory(File);

impl Memory {
    pub(crate) fn read(&self, address: u64, to: &mut [u8]) -> Result<(), Failure> {
        let done = self.0.read_exact_at(to, address);
        done.map_err(Failure::of("reading its memory"))
    }

    pub(crate) fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Failure> {
        let done = self.0.write_all_at(bytes, address);
        done.map_err(Failure::of("writing its memory"))
    }

    pub(crate) fn words<const N: usize>(&self, address: u64) -> Result<[u64; N], Failure> {
        let mut bytes = vec![0; 8 * N];
        self.read(address, &mut bytes)?;
        let (words, _) = bytes.as_chunks::<8>();
        Ok(std::array::from_fn(|at| u64::from_ne_bytes(words[at])))
    }
}

/// A file `status` of a process or thread.
#[derive(Clone, Debug)]
pub(crate) struct Status(String);

impl Status {
    fn field(&self, name: &str) -> Option<&str> {
        let mut lines = self.0.lines();
        lines.find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
    }

    fn number(&self, name: &str) -> u64 {
        let field = self
            .field(name)
            .and_then(|field| field.split_whitespace().next());
        field.and_then(|word| word.parse().ok()).unwrap_or(0)
    }

    /// Its id in its own pid namespace.
    pub(crate) fn id_in_namespace(&self) -> Option<u64> {
        self.field("NSpid")?
            .split_whitespace()
            .next_back()?
            .parse()
            .ok()
    }

    /// What in it speaks against moving the process.
    pub(crate) fn obstacles(&self) -> Vec<Obstacle> {
        let features = self.field("x86_Thread_features").unwrap_or_default();
        let state = self.field("State").unwrap_or_default().chars().next();
        let tracer = self.number("TracerPid") as u32;
        let all = [
            (self.number("Seccomp") != 0, Obstacle::Seccomp),
            (tracer != 0, Obstacle::Traced(tracer)),
            (state == Some('T'), Obstacle::Stopped),
            (matches!(state, Some('Z' | 'X')), Obstacle::Ended),
            (self.number("VmLck") != 0, Obstacle::Locked),
            (features.contains("shstk"), Obstacle::ShadowStack),
        ];
        let found = all.into_iter().filter(|(is_there, _)| *is_there);
        let mut found: Vec<_> = found.map(|(_, obstacle)| obstacle).collect();
        if found.is_empty() && self.field("VmSize").is_none() {
            found.push(Obstacle::OfKernel);
        }
        found
    }
}

/// Reads `smaps`.
fn mappings(text: &str) -> Option<Vec<Mapping>> {
    let mut all: Vec<Mapping> = Vec::new();
    for line in text.lines() {
        let first = line.split_whitespace().next().unwrap_or_default();
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            all.last_mut()?.vma.flags |= vma_flags(flags);
        } else if !first.ends_with(':') {
            all.push(mapping(line)?);
        }
    }
    all.retain(|mapping| mapping.vma.end <= ADDRESS_END);
    Some(all)
}

/// Reads the first line of a mapping.
fn mapping(line: &str) -> Option<Mapping> {
    let mut words = line.split_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let permissions = words.next()?.as_bytes();
    let name = words.skip(3).collect::<Vec<_>>().join(" ");
    let address = |text| u64::from_str_radix(text, 16).ok();
    let granted = |at: usize, bit: u32| match permissions.get(at) {
        Some(b'-') | None => 0,
        Some(_) => bit,
    };
    let is_shared = permissions.get(3) == Some(&b's');
    Some(Mapping {
        vma: Vma {
            start: address(start)?,
            end: address(end)?,
            protection: granted(0, 1) | granted(1, 2) | granted(2, 4),
            flags: if is_shared { running::SHARED } else { 0 },
        },
        name,
    })
}

fn vma_flags(text: &str) -> u32 {
    let of = |word: &str| match word {
        "dc" => running::DONT_FORK,
        "wf" => running::WIPE_ON_FORK,
        "dd" => running::DONT_DUMP,
        "lo" => running::LOCKED,
        _ => 0,
    };
    text.split_whitespace().fold(0, |all, word| all | of(word))
}

/// Reads `timers`: a line with the id, and one with how it notifies, for each.
fn timers(text: &str) -> Vec<Timer> {
    let mut all = Vec::new();
    for line in text.lines() {
        match line.split_once(':') {
            Some(("ID", id)) => {
                all.extend(id.trim().parse().ok().map(|id| Timer { id, to_thread: 0 }))
            }
            Some(("notify", how)) if how.contains("/tid.") => {
                if let Some(last) = all.last_mut() {
                    last.to_thread = 1;
                }
            }
            _ => {}
        }
    }
    all
}

/// Reads `start_brk` of `stat`: the 45th field after the name, which may have blanks.
fn heap_start(text: &str) -> Option<u64> {
    const PLACE: usize = 44;
    let (_, rest) = text.rsplit_once(')')?;
    rest.split_whitespace().nth(PLACE)?.parse().ok()
}

/// Reads processor time (`utime`, `stime`), `nice`, `rt_priority` and `policy` of `stat`.
fn scheduling(text: &str) -> Option<(u64, Scheduling)> {
    /// `USER_HZ`, as on all x86.
    const TICK_NS: u64 = 10_000_000;
    /// Their places after the name, which may have blanks.
    const UTIME: usize = 11;
    const STIME: usize = 12;
    const NICE: usize = 16;
    const PRIORITY: usize = 37;
    const POLICY: usize = 38;
    let (_, rest) = text.rsplit_once(')')?;
    let fields: Vec<_> = rest.split_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<i64>().ok();
    let ticks = number(UTIME)?.checked_add(number(STIME)?)?;
    let scheduling = Scheduling {
        nice: number(NICE)? as i32,
        policy: number(POLICY)? as u32,
        priority: number(PRIORITY)? as u32,
    };
    Some((ticks as u64 * TICK_NS, scheduling))
}

/// Whether a process exists.
pub(crate) fn exists(pid: i32) -> io::Result<bool> {
    fs::exists(format!("/proc/{pid}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
00400000-00452000 r-xp 00000000 08:02 173521 /usr/bin/a b
Size:                328 kB
VmFlags: rd ex mr mw me
7f0000000000-7f0000001000 rw-s 00000000 00:01 2048 /dev/zero (deleted)
VmFlags: rd wr sh mr mw me ms dc
7ffe00000000-7ffe00021000 rw-p 00000000 00:00 0 [stack]
VmFlags: rd wr mr mw me gd ac
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]
VmFlags: ex
";

    #[test]
    fn mappings_are_read_with_their_flags() {
        let found = mappings(SMAPS).unwrap();
        let names: Vec<_> = found.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["/usr/bin/a b", "/dev/zero (deleted)", "[stack]"]);
        let kinds: Vec<_> = found
            .iter()
            .map(|one| (one.vma.protection, one.vma.flags))
            .collect();
        let shared = running::SHARED | running::DONT_FORK;
        assert_eq!(kinds, [(5, 0), (3, shared), (3, 0)]);
        assert_eq!(found[2].vma.end, 0x7ffe_0002_1000);
        assert_eq!(mappings("VmFlags: rd\n"), None);
        assert_eq!(mappings("nonsense\n"), None);
    }

    #[test]
    fn a_thread_is_scheduled() {
        let text = "7 (a) b) S 1 7 7 0 -1 0 1 2 3 4 250 50 0 0 25 5 1 0 9 8 7 6 0 0 0 0 0 0 0 0 0 0 \
                    0 0 17 3 12 2 0 0 0";
        let wanted = Scheduling {
            nice: 5,
            policy: 2,
            priority: 12,
        };
        assert_eq!(scheduling(text), Some((3_000_000_000, wanted)));
        assert_eq!(scheduling("7 (a) S 1"), None);
    }

    #[test]
    fn timers_are_read() {
        let text = "ID: 3\nsignal: 10/0\nnotify: signal/tid.7\nClockID: 0\n\
                    ID: 4\nnotify: signal/pid.7\n";
        let found: Vec<_> = timers(text)
            .iter()
            .map(|one| (one.id, one.to_thread))
            .collect();
        assert_eq!(found, [(3, 1), (4, 0)]);
    }

    #[test]
    fn this_process_has_a_heap_and_a_stack() {
        let own = Process {
            pid: std::process::id().cast_signed(),
        };
        let mappings = own.mappings().unwrap();
        assert!(mappings.iter().any(|one| one.name == "[stack]"));
        let heap = mappings.iter().find(|one| one.name == "[heap]").unwrap();
        assert_eq!(own.heap_start().unwrap(), heap.vma.start);
        assert!(own.status().unwrap().id_in_namespace().is_some());
        assert_eq!(own.timers().unwrap(), []);
    }

    #[test]
    fn obstacles_are_found_in_the_status() {
        let status = |text: &str| Status(format!("{text}\nVmSize: 4 kB\n")).obstacles();
        assert_eq!(
            status("State:\tS (sleeping)\nSeccomp:\t0\nTracerPid:\t0"),
            []
        );
        assert_eq!(status("Seccomp:\t2"), [Obstacle::Seccomp]);
        assert_eq!(status("TracerPid:\t77"), [Obstacle::Traced(77)]);
        assert_eq!(status("State:\tT (stopped)"), [Obstacle::Stopped]);
        let ended = status("State:\tZ (zombie)\nVmLck:\t 8 kB");
        assert_eq!(ended, [Obstacle::Ended, Obstacle::Locked]);
        assert_eq!(Status("State: S".into()).obstacles(), [Obstacle::OfKernel]);
    }
}
