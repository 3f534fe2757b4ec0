//! Running processes of the base are moved onto a node of the lightweight kernel: they keep their files
//! and connections, and end as if nothing had happened.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::base::support::insula_command::{insula, with_cleanup};
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "move",
    proves: "running programs go on on a node, with their connections, by command and by policy",
    machine: Shape::USUAL,
    module: Module::Loaded,
    bases: &[Flavour::V6_12],
    limit: Duration::from_secs(400),
    soak_limit: Some(Duration::from_secs(3600)),
    play,
};

const NODE: &str = "quiet";
const FOLDER: &str = "/tmp/moving";
/// Files that scripts import.
const IMPORTED: [(&str, &str); 2] = [
    ("common.py", include_str!("moving/common.py")),
    ("nginx_server.py", include_str!("moving/nginx_server.py")),
];
const SCRIPTS: &[(&str, &str)] = &[
    ("static", include_str!("moving/static.py")),
    ("dynamic", include_str!("moving/dynamic.py")),
    ("threads", include_str!("moving/threads.py")),
    ("attributes", include_str!("moving/attributes.py")),
    ("nginx", include_str!("moving/nginx.py")),
    ("kills", include_str!("moving/kills.py")),
    ("policy", include_str!("moving/policy.py")),
    ("redis", include_str!("moving/redis.py")),
    ("refused", include_str!("moving/refused.py")),
];

fn play(context: &Context) -> Result<(), Finding> {
    let kills = context.count(4, 200);
    with_cleanup(|| {
        let words = ["run", "--image", "lwk", "--cpus", "2", "--memory", "256M"];
        insula(&[&words[..], &["--name", NODE]].concat())?;
        let done = SCRIPTS
            .iter()
            .try_for_each(|(name, script)| moves(name, script, kills));
        done?;
        insula(&["rm", "--force", NODE])?;
        Ok(fs::remove_dir_all(FOLDER)?)
    })
}

/// Runs a script in a folder of its own. What it started ends with it.
fn moves(name: &str, script: &str, kills: u64) -> Result<(), Finding> {
    let folder = Path::new(FOLDER).join(name);
    fs::create_dir_all(&folder)?;
    for (name, text) in IMPORTED {
        fs::write(folder.join(name), text)?;
    }
    fs::write(folder.join("script.py"), script)?;
    // Not pipes: a program that outlives a failed script would keep them open.
    let [output, errors] = ["output", "errors"].map(|name| folder.join(name));
    let mut script = Command::new("python3")
        .args(["-B", "script.py", NODE])
        .current_dir(&folder)
        .env("KILLS", kills.to_string())
        .stdout(File::create(&output)?)
        .stderr(File::create(&errors)?)
        .process_group(0)
        .spawn()?;
    let status = script.wait()?;
    let _: Result<(), Errno> = killpg(Pid::from_raw(script.id().cast_signed()), Signal::SIGKILL);
    println!("{name}: {}", fs::read_to_string(output)?.trim());
    let errors = fs::read_to_string(errors)?;
    Finding::unless(status.success(), || format!("{name}: {status}: {errors}"))
}
