//! Impossible requests are refused without side effects, with a message that helps.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::base::support::insula_command::{Answer, insula, try_insula, with_cleanup};
use crate::base::support::insula_module::{LoadedModule, module_is_loaded};
use crate::base::support::nodes::test_node::{TestNode, add_image, path};
use crate::base::support::resources::{Resources, assert_unchanged};
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "refusals",
    proves: "impossible requests are refused with what failed, what was left alone and what to do",
    machine: Shape::USUAL,
    module: Module::ByScenario,
    bases: &[Flavour::V6_12],
    limit: Duration::from_secs(400),
    soak_limit: None,
    play,
};

/// Exit status: refused by the command.
const REFUSED: i32 = 1;
/// Exit status: refused by the parser of the command line (clap's convention).
const MISUSED: i32 = 2;
/// Unprivileged user (`nobody`).
const NOBODY: &str = "65534";
const FOLDER: &str = "/tmp/refusals";

/// Arguments of `insula`, the expected exit status and parts of the message.
type Case<'a> = (&'a str, i32, &'a str);

/// Separator of the parts of a message.
const AND: &str = " | ";

fn play(context: &Context) -> Result<(), Finding> {
    fs::create_dir_all(FOLDER)?;
    without_module()?;
    let module = LoadedModule::load()?;
    with_cleanup(|| {
        without_privilege()?;
        machine_is_good()?;
        add_image(context, "debian", "6.1")?;
        in_use("with an image")?;
        let size = ["--cpu-list", "3", "--memory", "256M"];
        let node = TestNode::start("web", &["--image", "debian"], &size, "idle")?;
        in_use("with a node")?;
        cores()?;
        memory()?;
        files(context)?;
        names(context)?;
        node.wait_until_ready()?;
        states(&node)
    })?;
    module.unload()
}

/// All are refused, and each leaves all resources unchanged.
fn refuse(cases: &[Case<'_>]) -> Result<(), Finding> {
    let before = Resources::now()?;
    for &(words, status, message) in cases {
        assert_refused(&try_insula(&split(words))?, status, message)?;
        assert_unchanged(&before)
            .map_err(|finding| finding.when(&format!("after `insula {words}`")))?;
    }
    Ok(())
}

fn split(words: &str) -> Vec<&str> {
    words.split_whitespace().collect()
}

fn assert_refused(answer: &Answer, status: i32, message: &str) -> Result<(), Finding> {
    answer.refused(status, &message.split(AND).collect::<Vec<_>>())
}

fn without_module() -> Result<(), Finding> {
    let message = "insula.ko is not loaded | nothing was touched | modprobe insula";
    for words in [
        "ps",
        "run --image debian",
        "image ls",
        "machine info",
        "machine reserve --cpus 1",
        "rm web",
    ] {
        assert_refused(&try_insula(&split(words))?, REFUSED, message)?;
    }
    let answer = try_insula(&["machine", "check"])?;
    let reported = answer.output.contains("module") && answer.output.contains("insula.ko");
    Finding::unless(answer.status == Some(REFUSED) && reported, || {
        format!("`machine check` does not miss the module: {answer:?}")
    })
}

fn without_privilege() -> Result<(), Finding> {
    let message = "no privilege | nothing was touched | sudo";
    for words in ["ps", "run --image debian", "machine reserve --memory 64M"] {
        assert_refused(&as_nobody(&split(words))?, REFUSED, message)?;
    }
    Ok(())
}

fn as_nobody(words: &[&str]) -> Result<Answer, Finding> {
    let output = Command::new("setpriv")
        .args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"])
        .arg("insula")
        .args(words)
        .output()?;
    Ok(Answer::new(words, &output))
}

fn machine_is_good() -> Result<(), Finding> {
    insula(&["machine", "check"]).map(drop)
}

/// While something of it is in use, the module cannot be unloaded.
fn in_use(situation: &str) -> Result<(), Finding> {
    let output = Command::new("rmmod").arg("insula").output()?;
    let message = String::from_utf8_lossy(&output.stderr);
    let stays = !output.status.success() && message.contains("in use") && module_is_loaded()?;
    Finding::unless(stays, || format!("rmmod {situation}: {message}"))
}

fn cores() -> Result<(), Finding> {
    let run = |option: &str| format!("run --image debian --memory 256M {option}");
    refuse(&[
        (
            &run("--cpus 4"),
            REFUSED,
            "4 cores requested | nothing was touched | request fewer",
        ),
        (
            &run("--cpus 200"),
            REFUSED,
            "200 cores requested | nothing was touched",
        ),
        (&run("--cpus 0"), MISUSED, "'0' | --cpus"),
        (
            &run("--cpu-list 0"),
            REFUSED,
            "core 0 is not available | nothing was touched | choose other",
        ),
        (
            &run("--cpu-list 1-2,2"),
            REFUSED,
            "core 2 is listed twice | nothing was touched | once",
        ),
        (
            &run("--cpu-list 2-3"),
            REFUSED,
            "core 3 belongs to a node | nothing was touched | stop",
        ),
        (
            &run("--cpu-list 2,77"),
            REFUSED,
            "no core 77 | nothing was touched | choose one of",
        ),
        (
            &run("--cpu-list 2-"),
            MISUSED,
            "not a list of cores | such as 2,4-6",
        ),
    ])?;
    let online = Path::new("/sys/devices/system/cpu/cpu1/online");
    fs::write(online, "0")?;
    let message = "core 1 is offline | nothing was touched | cpu1/online";
    let refused = refuse(&[(&run("--cpu-list 1"), REFUSED, message)]);
    fs::write(online, "1")?;
    refused
}

fn memory() -> Result<(), Finding> {
    let run = |size: &str| format!("run --image debian --memory {size}");
    refuse(&[
        (
            &run("64G"),
            REFUSED,
            "64G of memory requested | nothing was touched | request less",
        ),
        (
            &run("512M,above=1T"),
            REFUSED,
            "above 1T | nothing was kept | elsewhere",
        ),
        (
            &run("512M,numa=7"),
            REFUSED,
            "no NUMA node 7 | nothing was touched | machine info",
        ),
        (
            &run("16M"),
            REFUSED,
            "need | 16M were requested | nothing was touched | --memory",
        ),
        (&run("3M"), MISUSED, "3M is not one | the next is 4M"),
        (&run("2M,below=1M"), MISUSED, "does not fit"),
        (&run("lots"), MISUSED, "'lots' is not a size | such as 512M"),
    ])
}

fn files(context: &Context) -> Result<(), Finding> {
    let kernel = path(&context.kernel("6.1")?);
    let (truncated, foreign) = (format!("{FOLDER}/truncated"), format!("{FOLDER}/foreign"));
    let whole = fs::read(&kernel)?;
    fs::write(&truncated, &whole[..whole.len() / 2])?;
    fs::write(&foreign, "no kernel at all\n")?;
    for verb in ["run --memory 256M", "image add other"] {
        let with = |kernel: &str| format!("{verb} --kernel {kernel}");
        let no_initrd = format!("{kernel} --initrd /no/initrd");
        refuse(&[
            (
                &with(&truncated),
                REFUSED,
                "is truncated | nothing was touched | again",
            ),
            (
                &with(&foreign),
                REFUSED,
                "neither a bzImage nor | nothing was touched | use a kernel",
            ),
            (
                &with("/usr/bin/env"),
                REFUSED,
                "/usr/bin/env: | nothing was touched",
            ),
            (
                &with("/no/vmlinuz"),
                REFUSED,
                "/no/vmlinuz | nothing was touched | --kernel",
            ),
            (
                &with(&no_initrd),
                REFUSED,
                "/no/initrd | nothing was touched | --initrd",
            ),
        ])?;
    }
    let ambiguous = "starting with '6' | nothing was touched | give more";
    refuse(&[
        ("image add other --installed 6", REFUSED, ambiguous),
        (
            "image add other --installed 5.4",
            REFUSED,
            "'5.4' | nothing was touched | --kernel",
        ),
    ])
}

fn names(context: &Context) -> Result<(), Finding> {
    let again = format!("image add debian --installed {}", context.release("6.1")?);
    let run = |words: &str| format!("run --memory 256M --image {words}");
    let taken = "already is an image 'debian' | left as it is | image rm debian";
    refuse(&[
        (
            &run("debian --name web"),
            REFUSED,
            "node 'web' already | nothing was touched | rm web",
        ),
        (
            &run("debian --name a/b"),
            MISUSED,
            "is not a valid name | letters",
        ),
        (
            &run("nosuch"),
            REFUSED,
            "no image 'nosuch' | nothing was touched | image ls",
        ),
        (&run("debian --colour red"), MISUSED, "--colour | --help"),
        (
            "image rm nosuch",
            REFUSED,
            "no image 'nosuch' | nothing was touched | image ls",
        ),
        (
            "image inspect nosuch",
            REFUSED,
            "no image 'nosuch' | nothing was touched",
        ),
        (&again, REFUSED, taken),
        ("frobnicate", MISUSED, "frobnicate | --help"),
        ("machine reserve", MISUSED, "--cpus | --memory"),
    ])?;
    for verb in ["stop", "kill", "rm", "logs", "inspect"] {
        let message = "no node 'nosuch' | nothing was touched | ps -a";
        refuse(&[(&format!("{verb} nosuch"), REFUSED, message)])?;
        refuse(&[(&format!("{verb} a/b"), MISUSED, "is not a valid name")])?;
    }
    Ok(())
}

/// A node's state forbids some actions.
fn states(node: &TestNode) -> Result<(), Finding> {
    refuse(&[(
        "rm web",
        REFUSED,
        "'web' is running | left as it is | stop it first",
    )])?;
    node.assert_runs()?;
    insula(&["kill", "web"])?;
    let dead = "'web' is not running | left as it is | rm web";
    refuse(&[("stop web", REFUSED, dead), ("kill web", REFUSED, dead)])
}
