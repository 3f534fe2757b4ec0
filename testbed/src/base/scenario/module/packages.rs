//! The project as its users install it: by packages, on a machine under systemd.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::base::support::insula_command::{
    assert_equal, insula, insula_json, names, text, wait_for, with_cleanup,
};
use crate::base::support::insula_module::module_is_loaded;
use crate::base::support::nodes::test_node::path;
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;
use crate::host::root::DEBS;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "packages",
    proves: "installed by its packages, nodes come up at boot, outlive an upgrade, and go down \
             before the base does; of the packages nothing is left",
    machine: Shape::USUAL,
    module: Module::Installed,
    bases: &[Flavour::V6_1],
    limit: Duration::from_secs(600),
    soak_limit: None,
    play,
};

const SERVICE: &str = "insula.service";
const FILE: &str = "/etc/insula/machine.toml";

fn play(context: &Context) -> Result<(), Finding> {
    Finding::unless(!module_is_loaded()?, || {
        "the module is loaded before its service".into()
    })?;
    with_cleanup(|| {
        describe(context, &["front", "back"])?;
        run("systemd-notify", &["--ready"])?;
        comes_up_at_boot()?;
        is_what_the_packages_brought()?;
        runs_a_program()?;
        completes_names()?;
        outlives_an_upgrade()?;
        reload_changes_what_differs(context)?;
        shuts_down_first()
    })?;
    run("modprobe", &["--remove", "insula"])?;
    purge_removes_all()
}

/// Writes the file that the service brings up: nodes with the running kernel.
fn describe(context: &Context, nodes: &[&str]) -> Result<(), Finding> {
    let kernel = path(&context.kernel("6.12")?);
    let initrd = path(context.node_initrd());
    let mut file = format!("[images.small]\nkernel = \"{kernel}\"\ninitrd = \"{initrd}\"\n");
    let mut before = None;
    for node in nodes {
        file += &format!("[nodes.{node}]\nimage = \"small\"\nmemory = \"256M\"\n");
        file += "append = \"do=idle\"\nready = { log = \"insula-node: ready\" }\n";
        if let Some(before) = before.replace(node) {
            file += &format!("after = [\"{before}\"]\n");
        }
    }
    Ok(fs::write(FILE, file)?)
}

fn comes_up_at_boot() -> Result<(), Finding> {
    wait_for("the module to be loaded", || {
        Ok(module_is_loaded()?.then_some(()))
    })?;
    // In turn: a boot, with two more in it, takes long on a loaded host.
    for node in ["front", "back"] {
        wait_for(&format!("{node} to run"), || {
            let view = nodes()?.into_iter().find(|(name, _)| name == node);
            Ok(view.map(drop))
        })?;
    }
    wait_for_service("active")?;
    assert_runs(&["front", "back"])?;
    wait_for("the machine to have booted", || {
        let output = Command::new("systemctl")
            .arg("is-system-running")
            .output()?;
        let state = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if state == "degraded" {
            let failed = run("systemctl", &["list-units", "--failed", "--no-legend"])?;
            return Err(Finding::new(format!("a unit has failed: {failed}")));
        }
        Ok((state == "running").then_some(()))
    })
}

fn is_what_the_packages_brought() -> Result<(), Finding> {
    assert_equal(
        "the command",
        &run("sh", &["-c", "command -v insula"])?,
        &"/usr/bin/insula".into(),
    )?;
    let module = run("modinfo", &["--field", "filename", "insula"])?;
    Finding::unless(module.contains("/updates/dkms/insula.ko"), || {
        format!("the module is not DKMS's: {module}")
    })?;
    // For both kernels, though only one can have been running.
    let status = run("dkms", &["status", "insula"])?;
    let built = status
        .lines()
        .filter(|line| line.ends_with(": installed"))
        .count();
    assert_equal(&format!("kernels of `{status}`"), &built, &2)?;
    for file in [
        "man/man1/insula-run.1.gz",
        "man/man1/insula-oci.1.gz",
        "insula/insula.schema.json",
        "insula/output.schema.json",
    ] {
        run("test", &["-s", &format!("/usr/share/{file}")])?;
    }
    let runtime = run("readlink", &["-f", "/usr/bin/insula-oci"])?;
    assert_equal("the OCI runtime", &runtime.trim_end(), &"/usr/bin/insula")?;
    Ok(())
}

/// On the packaged lightweight kernel, which is recognised by its symbols only.
fn runs_a_program() -> Result<(), Finding> {
    let size = ["--cpus", "1", "--memory", "128M"];
    let words = ["run", "--image", "lwk"].into_iter().chain(size);
    let words: Vec<_> = words.chain(["--", "/bin/echo", "hello"]).collect();
    assert_equal("its output", &insula(&words)?.trim(), &"hello")
}

/// A shell with the packaged completions offers the nodes' names.
fn completes_names() -> Result<(), Finding> {
    let script = "source /usr/share/bash-completion/completions/insula
        COMP_WORDS=(insula stop '') COMP_CWORD=2 COMP_TYPE=9
        _clap_complete_insula insula '' stop
        printf '%s\\n' \"${COMPREPLY[@]}\"";
    let offered = run("bash", &["-c", script])?;
    for node in ["front", "back"] {
        Finding::unless(offered.lines().any(|word| word == node), || {
            format!("{node} is not offered among: {offered}")
        })?;
    }
    Ok(())
}

fn outlives_an_upgrade() -> Result<(), Finding> {
    let before = nodes()?;
    run(
        "sh",
        &["-c", &format!("dpkg --install {DEBS}/insula_*.deb")],
    )?;
    assert_equal("nodes after an upgrade", &nodes()?, &before)?;
    wait_for_service("active")
}

fn reload_changes_what_differs(context: &Context) -> Result<(), Finding> {
    let before = nodes()?;
    describe(context, &["front"])?;
    run("systemctl", &["reload", SERVICE])?;
    let after = nodes()?;
    assert_equal("nodes after a reload", &after.len(), &1)?;
    let same = before.contains(&after[0]);
    Finding::unless(same, || {
        format!("an unchanged node was restarted: {after:?}")
    })
}

/// At shutdown the nodes end first: this process belongs to a service that systemd stops after the
/// project's.
fn shuts_down_first() -> Result<(), Finding> {
    run("systemctl", &["--no-block", "poweroff"])?;
    wait_for("the nodes to be removed", || {
        Ok(names(&["ps", "--all", "--json"])?.is_empty().then_some(()))
    })?;
    wait_for_service("inactive")
}

/// Purged packages leave no file, no link to the service, no module of any kernel.
fn purge_removes_all() -> Result<(), Finding> {
    fs::remove_file(FILE)?;
    let brought = run("dpkg", &["--listfiles", "insula", "insula-dkms"])?;
    run("dpkg", &["--purge", "insula", "insula-dkms"])?;
    let is_ours = |path: &&str| path.contains("insula");
    let left: Vec<_> = brought
        .lines()
        .filter(is_ours)
        .filter(|path| fs::symlink_metadata(path).is_ok())
        .collect();
    assert_equal("files left", &left, &Vec::new())?;
    let places = "/lib/modules /var/lib/dkms /etc/systemd";
    let found = run("sh", &["-c", &format!("find {places} -name '*insula*'")])?;
    assert_equal("left elsewhere", &found.as_str(), &"")
}

fn wait_for_service(state: &str) -> Result<(), Finding> {
    wait_for(&format!("{SERVICE} to be {state}"), || {
        let answer = run(
            "systemctl",
            &["show", "--property", "ActiveState", "--value", SERVICE],
        )?;
        Finding::unless(answer != "failed", || format!("{SERVICE} has failed"))?;
        Ok((answer == state).then_some(()))
    })
}

fn assert_runs(nodes: &[&str]) -> Result<(), Finding> {
    for node in nodes {
        let view = insula_json(&["inspect", node])?;
        assert_equal(node, &text(&view[0]["state"]), &"running".to_owned())?;
        let log = insula(&["logs", node])?;
        Finding::unless(log.contains("insula-node: ready"), || {
            format!("{node} counts as up, but is not ready")
        })?;
    }
    Ok(())
}

/// All nodes, with values that change with each start.
fn nodes() -> Result<Vec<(String, Value)>, Finding> {
    let list = insula_json(&["ps", "--all", "--json"])?;
    let views = list.as_array().into_iter().flatten();
    Ok(views
        .map(|view| (text(&view["name"]), view["id"].clone()))
        .collect())
}

/// Runs a program, which must succeed. Returns its output.
fn run(program: &str, words: &[&str]) -> Result<String, Finding> {
    let output = Command::new(program)
        .args(words)
        .stdin(Stdio::null())
        .output()?;
    let printed = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    Finding::unless(output.status.success(), || {
        let error_output = String::from_utf8_lossy(&output.stderr).into_owned();
        format!("{program} {}: {printed}\n{error_output}", words.join(" "))
    })?;
    Ok(printed)
}
