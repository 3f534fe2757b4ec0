//! Invalid programs, and programs that end badly: the node goes on.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use super::{NODE, PROBE, on_node, output};
use crate::base::Finding;
use crate::base::support::insula_command::{assert_equal, insula};

const FOLDER: &str = "/tmp/bad";
const GOOD: &str = "/bin/busybox";

fn still_runs() -> Result<(), Finding> {
    insula(&["exec", NODE, "--", "/bin/true"]).map(drop)
}

/// Files that are truncated, changed, or of other machines.
pub(super) fn files() -> Result<(), Finding> {
    fs::create_dir_all(FOLDER)?;
    let file = fs::read(GOOD)?;
    let cut = [0, 1, 63, 64, 120, 4095].map(|size| file[..size].to_vec());
    let changes: [(usize, &[u8]); 7] = [
        (4, &[1]),             // 32 bits
        (18, &[0xb7]),         // of ARM
        (54, &[0xff, 0xff]),   // program headers of another size
        (56, &[0xff, 0xff]),   // very many of them
        (32, &[0xff; 8]),      // somewhere else
        (64 + 16, &[0xff; 8]), // a segment at no address
        (64 + 40, &[0xff; 6]), // a segment of all memory
    ];
    let changed = changes.map(|(at, bytes)| {
        let mut file = file.clone();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        file
    });
    for (content, number) in cut.into_iter().chain(changed).zip(0..) {
        let path = format!("{FOLDER}/{number}");
        fs::write(&path, content)?;
        fs::set_permissions(&path, PermissionsExt::from_mode(0o755))?;
        let ended = output(&mut on_node(&[&path, "true"]), "")?;
        let says = String::from_utf8_lossy(&ended.stderr).contains("the program cannot be");
        let refused = matches!(ended.status.code(), Some(126 | 127)) && says;
        Finding::unless(refused || ended.status.signal().is_some(), || {
            format!("bad program {number} ended so: {ended:?}")
        })?;
    }
    fs::remove_dir_all(FOLDER)?;
    still_runs()
}

/// Wild pointers in every argument of every call: EFAULT where Linux returns it.
pub(super) fn pointers() -> Result<(), Finding> {
    let on_linux = probe(&mut Command::new(PROBE), &["pointers"])?;
    let on_node = probe(&mut on_node(&[PROBE]), &["pointers"])?;
    let both = on_node.lines().zip(on_linux.lines());
    let differ = |(found, wanted): &(&str, &str)| found != wanted;
    let different: Vec<_> = both.filter(differ).collect();
    assert_equal("calls", &on_node.lines().count(), &on_linux.lines().count())?;
    Finding::unless(different.is_empty(), || {
        format!("wild pointers on the node and on Linux: {different:#?}")
    })?;
    cannot_reach_the_proxy()
}

fn cannot_reach_the_proxy() -> Result<(), Finding> {
    let kept = probe(&mut on_node(&[PROBE]), &["proxy"])?;
    assert_equal(
        "access to the proxy's memory and descriptors",
        &kept.as_str(),
        &"the program cannot reach it\n",
    )?;
    still_runs()
}

/// Random calls of an unprivileged user.
pub(super) fn calls() -> Result<(), Finding> {
    const ROUNDS: &str = "30";
    let made = probe(&mut on_node(&[PROBE]), &["fuzz", "1", ROUNDS])?;
    println!("{} were random", made.trim_end());
    still_runs()
}

/// Process groups on all cores that are killed at once, again and again: all are waited for, and
/// the node goes on.
pub(super) fn mass_kills() -> Result<(), Finding> {
    let ended = probe(&mut on_node(&[PROBE]), &["mass_kill"])?;
    println!("{}", ended.trim_end());
    still_runs()
}

/// Excessive demands for memory, tables, threads and children: they are refused, and the node goes
/// on.
pub(super) fn limits() -> Result<(), Finding> {
    let found = probe(&mut on_node(&[PROBE]), &["limits"])?;
    let memory = found.lines().next().and_then(|line| {
        let rest = line.strip_prefix("memory: ")?.strip_suffix(" MiB")?;
        rest.parse::<u32>().ok()
    });
    // The node's memory, without the kernel's own.
    Finding::unless(memory.is_some_and(|mib| (350..384).contains(&mib)), || {
        format!("the memory of a node: {found}")
    })?;
    let found = found.split_once('\n').map_or("", |(_, rest)| rest);
    let wanted = "true ENOMEM true true true true\n\
                  a program with all memory has ended\n\
                  a file larger than memory: Ok(0)\n\
                  as data: Err(ENOMEM)\n\
                  page tables without end: killed true\n\
                  many threads: true\n\
                  a program with many threads has ended\n\
                  many copies: true\n";
    assert_equal("refusals", &found.starts_with(wanted), &true)
        .map_err(|_| Finding::new(format!("the limits of a node: {found}")))?;
    let copies = ["EAGAIN", "ENOMEM"].map(|error| format!("copies are refused: Some({error})\n"));
    Finding::unless(copies.iter().any(|end| found.ends_with(end)), || {
        format!("the limits of a node: {found}")
    })?;
    still_runs()
}

/// Output of the probe, without input.
fn probe(command: &mut Command, words: &[&str]) -> Result<String, Finding> {
    let probed = command.args(words).stdin(Stdio::null()).output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Finding::unless(probed.status.success(), || {
        format!("{words:?}: {}, {}", probed.status, text(&probed.stderr))
    })?;
    Ok(text(&probed.stdout))
}

/// More memory than the node has; an endless stack; an invalid instruction; a null pointer, with a
/// core file that a debugger reads.
pub(super) fn ends() -> Result<(), Finding> {
    let python = |code| output(&mut on_node(&["/usr/bin/python3", "-c", code]), "");
    let out_of_memory = python("b = [b'x' * (1 << 22) for _ in range(200)]")?;
    let ended = out_of_memory.status.signal() == Some(9) || out_of_memory.status.code() == Some(1);
    Finding::unless(ended, || {
        format!("without memory it ended with {}", out_of_memory.status)
    })?;
    // The same, but the base needs the memory, in a call.
    let reads = "import mmap; open('/dev/zero', 'rb', 0).readinto(mmap.mmap(-1, 1 << 30))";
    let ended = python(reads)?.status;
    assert_equal("reading without memory", &ended.signal(), &Some(9))?;
    still_runs()?;
    let deep = output(&mut on_node(&[GOOD, "sh", "-c", "f() { f; }; f"]), "")?;
    assert_equal("the end of a stack", &deep.status.signal(), &Some(11))?;
    leaves_a_core_file()?;
    leaves_all_threads()?;
    still_runs()
}

const CORE: &str = "/tmp/core.python";

fn leaves_a_core_file() -> Result<(), Finding> {
    fs::write("/proc/sys/kernel/core_pattern", CORE)?;
    let crash = "ulimit -c unlimited; exec insula exec quiet -- /usr/bin/python3 -c \
                 'import ctypes; ctypes.string_at(16)'";
    let status = Command::new("/bin/sh").args(["-c", crash]).status()?;
    assert_equal("a null pointer", &status.signal(), &Some(11))?;
    Finding::unless(Path::new(CORE).exists(), || "there is no core file".into())?;
    let debugger = Command::new("gdb")
        .args(["-batch", "-ex", "backtrace 3", "/usr/bin/python3", CORE])
        .output()?;
    fs::remove_file(CORE)?;
    understood(&debugger)
}

/// Three threads with a value of their own in a register, one of which then crashes.
const THREADS_FAIL: &str = r#"
import ctypes, mmap, threading, time
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
at = ctypes.addressof(ctypes.c_char.from_buffer(code))
up = mmap.mmap(-1, 4096)
word = ctypes.addressof(ctypes.c_char.from_buffer(up))
def begin(number, end):
    # mov r15, 0xabc0 + number; mov rax, word; lock inc [rax]; end
    start = 64 * number
    code[start:start + 64] = (bytes.fromhex("49bf") + (0xabc0 + number).to_bytes(8, "little")
        + bytes.fromhex("48b8") + word.to_bytes(8, "little") + bytes.fromhex("f048ff00")
        + bytes.fromhex(end)).ljust(64, b"\x90")
    threading.Thread(target=ctypes.CFUNCTYPE(None)(at + start)).start()
for number in (1, 2, 3): begin(number, "ebfe")
while up[0] < 3: time.sleep(0.01)
begin(4, "0f0b")
"#;

/// The core file has all threads, each with its own registers, the crashed one first.
fn leaves_all_threads() -> Result<(), Finding> {
    let crash = "ulimit -c unlimited; exec insula exec quiet -- /usr/bin/python3 -c \"$0\"";
    let ended = Command::new("/bin/sh")
        .args(["-c", crash, THREADS_FAIL])
        .status()?;
    assert_equal("no instruction", &ended.signal(), &Some(4))?;
    let show = "thread apply all -ascending print/x $r15";
    let debugger = Command::new("gdb")
        .args(["-batch", "-ex", show, "/usr/bin/python3", CORE])
        .output()?;
    fs::remove_file(CORE)?;
    let text = String::from_utf8_lossy(&debugger.stdout).into_owned();
    let values = text.lines().filter_map(|line| line.split_once(" = 0x"));
    let mut values: Vec<&str> = values.map(|(_, value)| value).collect();
    Finding::unless(values.first() == Some(&"abc4"), || {
        format!("gdb does not start with the crashed thread: {text}")
    })?;
    values.retain(|value| value.starts_with("abc"));
    values.sort_unstable();
    assert_equal("registers", &values, &vec!["abc1", "abc2", "abc3", "abc4"])
}

fn understood(debugger: &Output) -> Result<(), Finding> {
    let text = String::from_utf8_lossy(&debugger.stdout).into_owned();
    let wanted = ["terminated with signal SIGSEGV", "#0 ", "#1 "];
    match wanted.iter().find(|part| !text.contains(**part)) {
        Some(missing) => Err(Finding::new(format!(
            "gdb does not print `{missing}`: {text}"
        ))),
        None => Ok(()),
    }
}
