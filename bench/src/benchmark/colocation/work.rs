//! What works on the core meanwhile, and whose it is.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use testbed::base::Finding;

use super::{BUSY_TICKS, CONFINED, CONFINED_SIZE, CORE, LIMIT, NODE, PROCESS, QUIET};
use crate::inside::{BUSYBOX, INSIDE_PROBE, Inside, PROBE, output_of};
use crate::marks::Kind;

/// Whose the core is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// The base's.
    Base,
    /// A confined Linux node's.
    Confined,
    /// The lightweight kernel's.
    Lwk,
}

impl Owner {
    pub(super) fn start(self, inside: &Inside) -> Result<(), Finding> {
        if self == Self::Confined {
            let words = [&["run", "--name", CONFINED], &CONFINED_SIZE[..]].concat();
            inside.command.run(&words)?;
            output_of(
                self.command(inside)
                    .args([BUSYBOX, "insmod", &format!("/{QUIET}")]),
            )?;
        }
        Ok(())
    }

    pub(super) fn end(self, inside: &Inside) -> Result<(), Finding> {
        if self == Self::Confined {
            inside.command.run(&["rm", "--force", CONFINED])?;
        }
        Ok(())
    }

    /// A command that executes the words added to it, on the core.
    fn command(self, inside: &Inside) -> Command {
        let (mut command, core) = match self {
            Self::Base => (Command::new("taskset"), CORE.to_string()),
            Self::Confined | Self::Lwk => (inside.command.prepare(), "--".to_owned()),
        };
        match self {
            Self::Base => command.arg("-c"),
            Self::Confined => command.args(["exec", CONFINED]),
            Self::Lwk => command.args(["exec", NODE]),
        };
        command.arg(core);
        command
    }

    /// Seconds that a program takes there.
    pub(super) fn work_s(self, inside: &Inside) -> Result<f64, Finding> {
        let probe = match self {
            Self::Confined => INSIDE_PROBE,
            _ => PROBE,
        };
        let began = Instant::now();
        let mut command = self.command(inside);
        output_of(command.args([probe, "marked", Kind::SpinPlain.word(), probe]))?;
        Ok(began.elapsed().as_secs_f64())
    }

    /// Words that execute a script.
    fn script(self, script: &str) -> Vec<String> {
        let shell: &[&str] = match self {
            Self::Confined => &[BUSYBOX, "sh", "-c"],
            _ => &["sh", "-c"],
        };
        let told = format!("echo $$ > {PROCESS}; {script}");
        let script = if self == Self::Confined {
            &told
        } else {
            script
        };
        shell
            .iter()
            .chain([&script])
            .map(|word| (*word).to_owned())
            .collect()
    }
}

/// A program that works meanwhile; killed when this is dropped.
pub(super) struct Work<'a> {
    inside: &'a Inside,
    owner: Owner,
    child: Child,
}

impl<'a> Work<'a> {
    pub(super) fn start(script: &str, owner: Owner, inside: &'a Inside) -> Result<Self, Finding> {
        let mut command = owner.command(inside);
        let command = command.args(owner.script(script)).stdin(Stdio::null());
        Ok(Self {
            inside,
            owner,
            child: command.spawn()?,
        })
    }

    /// Waits until it has begun, or, of one of the base, has spent some time in the kernel.
    pub(super) fn wait_until_busy(&self) -> Result<(), Finding> {
        if self.owner == Owner::Confined {
            let wait = format!("until [ -e {PROCESS} ]; do {BUSYBOX} sleep 0.05; done");
            let mut command = self.owner.command(self.inside);
            return output_of(command.args([BUSYBOX, "sh", "-c", &wait])).map(drop);
        }
        let stat = format!("/proc/{}/stat", self.child.id());
        let began = Instant::now();
        loop {
            let text = fs::read_to_string(&stat)?;
            // The 15th value, and the 13th behind the name: proc(5).
            let values = text.rsplit(')').next().unwrap_or_default();
            let ticks = values.split_whitespace().nth(12).unwrap_or_default();
            if ticks.parse().is_ok_and(|ticks: u64| ticks >= BUSY_TICKS) {
                return Ok(());
            }
            Finding::unless(began.elapsed() < LIMIT, || {
                "the base's program does nothing".into()
            })?;
            std::thread::yield_now();
        }
    }
}

impl Drop for Work<'_> {
    fn drop(&mut self) {
        if self.owner == Owner::Confined {
            let end = format!("kill -9 $({BUSYBOX} cat {PROCESS}); {BUSYBOX} rm {PROCESS}");
            // It may have ended.
            let _ = output_of(
                self.owner
                    .command(self.inside)
                    .args([BUSYBOX, "sh", "-c", &end]),
            );
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
