//! What nodes and processes do shortly before the machine is ended at its time limit: of a scenario that
//! hangs nothing else tells where.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use super::insula_command::show_nodes;

/// Part of the time limit that is left for it: a command may take seconds on a busy host.
const LEFT_PART: u32 = 8;
/// Flag of the kernel's own threads: `PF_KTHREAD` of include/linux/sched.h.
const KERNEL_THREAD: u32 = 0x0020_0000;
/// Functions shown of each waiting thread, innermost first.
const FRAMES_SHOWN: usize = 4;
/// Characters shown of a command line.
const WORDS_SHOWN: usize = 100;

/// Prints it when most of `limit` has passed, unless this process has ended by then.
pub fn before(limit: Duration) {
    thread::spawn(move || {
        thread::sleep(limit - limit / LEFT_PART);
        println!("The time limit is near.");
        show_nodes();
        show_processes();
    });
}

/// Prints the threads of all processes but the kernel's own, and where in the kernel they wait. A process may
/// have ended but for some of its threads.
fn show_processes() {
    for process in folders("/proc") {
        let line = fs::read(format!("{process}/cmdline")).unwrap_or_default();
        let words = String::from_utf8_lossy(&line).replace('\0', " ");
        let words: String = words.chars().take(WORDS_SHOWN).collect();
        for thread in folders(&format!("{process}/task")) {
            let stat = fs::read_to_string(format!("{thread}/stat")).unwrap_or_default();
            if let Some((name, state)) = user_thread(&stat) {
                println!("{thread} {name} ({state}) {words}: {}", waits_in(&thread));
            }
        }
    }
}

/// Name and state of a thread by its `stat`, proc_pid_stat(5); none of the kernel's own.
fn user_thread(stat: &str) -> Option<(&str, &str)> {
    let (begin, rest) = stat.rsplit_once(") ")?;
    let (_, name) = begin.split_once('(')?;
    let fields: Vec<_> = rest.split(' ').collect();
    let flags: u32 = fields.get(6)?.parse().ok()?;
    (flags & KERNEL_THREAD == 0).then_some((name, fields[0]))
}

/// Paths of the folders in one whose names are numbers.
fn folders(path: &str) -> Vec<String> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let numbers = names.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
    numbers.map(|name| format!("{path}/{name}")).collect()
}

/// Functions in which a thread waits.
fn waits_in(thread: &str) -> String {
    let stack = fs::read_to_string(Path::new(thread).join("stack")).unwrap_or_default();
    let names = stack.lines().filter_map(function_of);
    names.take(FRAMES_SHOWN).collect::<Vec<_>>().join(" ")
}

/// Function of a line as `[<0>] futex_wait+0x6e/0x100`.
fn function_of(line: &str) -> Option<&str> {
    let (_, place) = line.split_once("] ")?;
    place.split('+').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_a_stack() {
        assert_eq!(
            function_of("[<0>] futex_wait+0x6e/0x100"),
            Some("futex_wait")
        );
        assert_eq!(function_of(""), None);
    }

    #[test]
    fn threads_of_the_kernel_are_told_apart() {
        let stat = "21 (a) b) S 1 21 21 0 -1 4194560 1 2";
        assert_eq!(user_thread(stat), Some(("a) b", "S")));
        assert_eq!(user_thread("2 (kthreadd) S 0 0 0 0 -1 2129984 0 0"), None);
        assert_eq!(user_thread(""), None);
    }

    #[test]
    fn own_process_is_found() {
        let own = format!("/proc/{}", std::process::id());
        assert!(folders("/proc").contains(&own));
        assert!(
            folders(&format!("{own}/task")).contains(&format!("{own}/task/{}", std::process::id()))
        );
    }
}
