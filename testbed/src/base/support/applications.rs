//! Large programs of Debian's packages, unmodified, with Linux' results on the lightweight kernel.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use super::insula_command::{insula, with_cleanup};
use super::spare::shell;
use crate::base::{Context, Finding};

/// Folder in which each runs, empty before.
const FOLDER: &str = "/srv/application";
/// Name of its script there.
const SCRIPT: &str = "script";
const NODE: &str = "quiet";

/// A script of programs whose output does not depend on when it runs, or where.
pub(crate) struct Application {
    /// Its name, for figures and messages.
    pub(crate) name: &'static str,
    /// Script of sh(1). It gets a count as its argument.
    pub(crate) script: &'static str,
    /// Other files in its folder: name and content.
    pub(crate) files: &'static [(&'static str, &'static str)],
    /// User who runs it.
    pub(crate) user: &'static str,
    /// Its count, and the one in long runs.
    pub(crate) counts: (u64, u64),
}

/// What a run gave.
struct Run {
    output: Output,
    elapsed: Duration,
}

/// Runs all on Linux, then on a node, and compares.
pub(crate) fn are_alike(context: &Context, applications: &[Application]) -> Result<(), Finding> {
    let on_linux = applications.iter().map(|one| one.run_on_linux(context));
    let on_linux = on_linux.collect::<Result<Vec<_>, _>>()?;
    with_cleanup(|| {
        let memory = "1280M,chunk=32M";
        let words = ["run", "--image", "lwk", "--cpus", "3", "--memory", memory];
        insula(&[&words[..], &["--name", NODE]].concat())?;
        for (application, on_linux) in applications.iter().zip(&on_linux) {
            application.is_alike(context, on_linux)?;
        }
        insula(&["rm", "--force", NODE]).map(drop)
    })
}

impl Application {
    /// Runs it on Linux, where it must succeed: two failures, alike, would prove nothing.
    fn run_on_linux(&self, context: &Context) -> Result<Run, Finding> {
        let run = self.run(context, &[])?;
        Finding::unless(run.output.status.success(), || {
            format!("{} on Linux: {}", self.name, described(&run.output))
        })?;
        Ok(run)
    }

    fn is_alike(&self, context: &Context, on_linux: &Run) -> Result<(), Finding> {
        // Emulated cores take turns: what polls in vain only delays who is waited for.
        let run = self.run(context, &["insula", "exec", "--polls", "0", NODE, "--"])?;
        let (found, wanted) = (&run.output, &on_linux.output);
        let alike = found.status == wanted.status && found.stdout == wanted.stdout;
        Finding::unless(alike, || {
            let (name, wanted) = (self.name, described(wanted));
            format!(
                "{name} on the node: {}\non Linux: {wanted}",
                described(found)
            )
        })?;
        let figure = |side: &str, run: &Run| {
            let name = format!("{} on {side}", self.name);
            context.figure(&name, run.elapsed.as_secs_f64(), "s")
        };
        figure("Linux", on_linux)?;
        figure("the lightweight kernel", &run)
    }

    /// Runs it in a new folder, started by `launcher`.
    fn run(&self, context: &Context, launcher: &[&str]) -> Result<Run, Finding> {
        let user = self.user;
        shell(&format!(
            "rm -rf {FOLDER} && install -d -o {user} -g {user} {FOLDER}"
        ))?;
        for (name, content) in [&[(SCRIPT, self.script)], self.files].concat() {
            fs::write(Path::new(FOLDER).join(name), content)?;
        }
        let count = context.count(self.counts.0, self.counts.1).to_string();
        let rights = ["setpriv", "--reuid", user, "--regid", user];
        let script = ["--clear-groups", "/bin/sh", "-eu", SCRIPT, &count];
        let words = [launcher, &rights, &script].concat();
        let began = Instant::now();
        let output = Command::new(words[0])
            .args(&words[1..])
            .current_dir(FOLDER)
            .stdin(Stdio::null())
            .output()?;
        let elapsed = began.elapsed();
        Ok(Run { output, elapsed })
    }
}

fn described(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (printed, errors) = (text(&output.stdout), text(&output.stderr));
    format!("{}, {printed}\nits errors: {errors}", output.status)
}
