//! A program on a terminal: it is detached from by keys, and goes on.

use super::IMAGE;
use crate::base::Finding;
use crate::base::support::insula_command::{assert_equal, insula};
use crate::base::support::terminal::on_terminal;

const NODE: &str = "shell";
/// What a shell prints before it reads.
const PROMPT: &str = "# ";
/// The last that is typed before the keys, and the keys.
const DETACH: &str = "last=too\r\x10\x11";

pub(super) fn is_detached_from() -> Result<(), Finding> {
    let run = ["insula", "run", "-it", "--name", NODE, "--memory", "128M"];
    let run = [&run[..], &[IMAGE, "/bin/sh"]].concat();
    let typed = [(PROMPT, "kept=yes; echo do''ne\r"), ("done", DETACH)];
    let (status, output) = on_terminal(&run, &typed)?;
    Finding::unless(status == Some(0), || {
        format!("left by its keys, `insula run` ended with {status:?}: {output}")
    })?;
    let typed = [(PROMPT, "echo it is $kept $last; exit 3\r")];
    let (status, output) = on_terminal(&["insula", "attach", NODE], &typed)?;
    assert_equal("the program's status", &status, &Some(3))?;
    Finding::unless(output.contains("it is yes too"), || {
        format!("it printed {output:?}")
    })?;
    insula(&["rm", "--force", NODE]).map(drop)
}
