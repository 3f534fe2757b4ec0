//! A session of ssh: its shell, its server and the connection go on, with the keys that both ends have agreed on.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use super::{Client, start as start_container};
use crate::base::Finding;
use crate::base::support::insula_command::{assert_equal, wait_for};

const NAME: &str = "ssh";
const PORT: &str = "2222";
/// The client's keys, on the base.
const KEYS: &str = "/tmp/ssh-client";
/// Starts the server with a key of its own; the argument is the client's.
const SERVER: &str = "mkdir -p /run/sshd; ssh-keygen -q -t ed25519 -N '' -f /tmp/host && echo \"$1\" > /tmp/client && \
                      exec /usr/sbin/sshd -D -e -p 2222 -h /tmp/host -o UsePAM=no -o StrictModes=no -o PidFile=none \
                      -o PermitRootLogin=yes -o AuthorizedKeysFile=/tmp/client";
/// Repeats each line, with the shell's process id: it is the same one all the time.
const SESSION: &str = "while read line; do echo $line $$; done";

pub(super) fn start(node: &str) -> Result<Client, Finding> {
    let made = Command::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-f", KEYS])
        .status()?;
    Finding::unless(made.success(), || format!("ssh-keygen: {made}"))?;
    let key = fs::read_to_string(format!("{KEYS}.pub"))?;
    let address = start_container(NAME, node, &["sh", "-c", SERVER, "sh", key.trim_end()])?;
    let mut session = wait_for("a session", || Ok(Session::open(&address).ok()))?;
    let mut shell = None;
    Ok(Client::start(NAME, move |number| {
        let answer = session.ask(number)?;
        let (repeated, pid) = answer.split_once(' ').unwrap_or_default();
        assert_equal("the line", &repeated, &number.to_string().as_str())?;
        let pid = pid.to_owned();
        let same = shell.get_or_insert_with(|| pid.clone());
        assert_equal("the shell", &pid, same)
    }))
}

/// Removes the client's keys.
pub(super) fn clean_up() -> Result<(), Finding> {
    fs::remove_file(KEYS)?;
    Ok(fs::remove_file(format!("{KEYS}.pub"))?)
}

/// An open session, ended when this is dropped.
struct Session {
    client: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Session {
    /// Opens one, which answers.
    fn open(address: &str) -> Result<Self, Finding> {
        let mut client = Command::new("ssh")
            .args(["-T", "-i", KEYS, "-p", PORT, "-l", "root", address])
            .args(["-o", "StrictHostKeyChecking=no", "-o", "BatchMode=yes"])
            .args(["-o", "UserKnownHostsFile=/dev/null", SESSION])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let output = client.stdout.take();
        let output = output.ok_or_else(|| Finding::new("its output is not piped"))?;
        let mut session = Self {
            client,
            output: BufReader::new(output),
        };
        session.ask(0)?;
        Ok(session)
    }

    fn ask(&mut self, number: u64) -> Result<String, Finding> {
        let input = self.client.stdin.as_mut();
        let input = input.ok_or_else(|| Finding::new("its input is not piped"))?;
        writeln!(input, "{number}")?;
        let mut line = String::new();
        let size = self.output.read_line(&mut line)?;
        Finding::unless(size > 0, || "the session has ended".into())?;
        Ok(line.trim_end().to_owned())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.client.kill();
        let _ = self.client.wait();
    }
}
