//! Supervisor processes of nodes, as the system lists them, and their log.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;

use super::insula_command::wait_for;
use crate::base::Finding;

/// Socket of the system's log (syslog(3)).
const LOG_SOCKET: &str = "/dev/log";

/// Kills the supervisor of a node, and waits until it is gone: then the module knows as well.
pub(crate) fn kill(node: &str) -> Result<(), Finding> {
    let pid = wait_for("the supervisor's process", || Ok(find(Some(node))?.pop()))?;
    match signal::kill(pid, Signal::SIGKILL) {
        Ok(()) | Err(Errno::ESRCH) => {}
        Err(error) => return Err(error.into()),
    }
    wait_for("the supervisor to end", || {
        Ok((!is_alive(pid)).then_some(()))
    })
}

/// OOM score adjustment of a node's supervisor (`oom_score_adj`).
pub(crate) fn oom_score(node: &str) -> Result<i32, Finding> {
    let pid = wait_for("the supervisor's process", || Ok(find(Some(node))?.pop()))?;
    let text = fs::read_to_string(format!("/proc/{pid}/oom_score_adj"))?;
    Ok(text.trim().parse()?)
}

/// Waits until a node has a supervisor, without a command on the node, which would give it one.
pub(crate) fn wait_for_one(node: &str) -> Result<(), Finding> {
    wait_for(&format!("a supervisor of {node}"), || {
        Ok((!find(Some(node))?.is_empty()).then_some(()))
    })
}

/// Fails if there still is any, some time after the last node has gone.
pub(crate) fn assert_none() -> Result<(), Finding> {
    wait_for("all supervisors to end", || {
        Ok(find(None)?.is_empty().then_some(()))
    })
}

/// Processes that supervise this node, or any.
pub(crate) fn find(node: Option<&str>) -> Result<Vec<Pid>, Finding> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // It may have ended meanwhile.
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<_> = line.split(|&byte| byte == 0).collect();
        let same = |word: &&[u8]| node.is_none_or(|node| *word == node.as_bytes());
        let is_one = words.get(1) == Some(&&b"supervise"[..]) && words.contains(&&b"--here"[..]);
        if is_one && words.get(2).is_some_and(same) {
            found.push(Pid::from_raw(pid));
        }
    }
    Ok(found)
}

/// Whether the process has open files. A zombie has none once all of its threads have ended: the
/// first thread may end long before the others, which keep the files open.
fn is_alive(pid: Pid) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task"));
    threads.into_iter().flatten().flatten().any(|thread| {
        let status = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        let state = status.rsplit(')').next().unwrap_or_default().trim_start();
        !(state.is_empty() || state.starts_with(['Z', 'X']))
    })
}

/// All lines that were sent to the system's log.
static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn lines() -> MutexGuard<'static, Vec<String>> {
    LINES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a line with that text has been sent to the system's log.
pub(crate) fn has_logged(text: &str) -> bool {
    lines().iter().any(|line| line.contains(text))
}

/// The system's log: its lines are printed with the scenario's own output.
pub(crate) struct SystemLog {
    ended: Arc<AtomicBool>,
    reader: Option<JoinHandle<()>>,
}

impl SystemLog {
    /// Listens where a system's logger would. There is none in the machine.
    pub(crate) fn listen() -> Result<Self, Finding> {
        // Left by an earlier scenario.
        let _ = fs::remove_file(LOG_SOCKET);
        let socket = UnixDatagram::bind(Path::new(LOG_SOCKET))?;
        socket.set_read_timeout(Some(Duration::from_millis(100)))?;
        let ended = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&ended);
        let reader = std::thread::spawn(move || {
            let mut line = [0; 2048];
            while !until.load(Ordering::Relaxed) {
                if let Ok(size) = socket.recv(&mut line) {
                    let text = String::from_utf8_lossy(&line[..size]).into_owned();
                    println!("  {text}");
                    lines().push(text);
                }
            }
        });
        Ok(Self {
            ended,
            reader: Some(reader),
        })
    }
}

impl Drop for SystemLog {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(reader) = self.reader.take() {
            // It only prints.
            let _ = reader.join();
        }
        let _ = fs::remove_file(LOG_SOCKET);
    }
}
