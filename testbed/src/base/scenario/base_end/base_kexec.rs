//! The base starts another kernel by kexec while nodes run.

use std::fs;
use std::process::Command;
use std::time::Duration;

use insula_image::Initramfs;

use super::{NEXT_KERNEL, end_by, start_nodes, success};
use crate::base::support::insula_command::assert_equal;
use crate::base::support::nodes::test_node::path;
use crate::base::support::resources::online;
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "base_kexec",
    proves: "kexec with nodes running gives the next kernel a machine whose cores all start",
    machine: Shape::USUAL,
    module: Module::Loaded,
    bases: &[Flavour::V6_1],
    limit: Duration::from_secs(180),
    soak_limit: None,
    play,
};

/// First process under the next kernel: brings all cores online and counts them.
const INIT: &str = r#"
for core in /sys/devices/system/cpu/cpu[0-9]*/online; do
	echo 1 > "$core"
done
cores=$(grep -c ^processor /proc/cpuinfo)
echo "testbed: after kexec $cores cores run" > /dev/kmsg
[ "$cores" = CORES ] && store
poweroff -f
"#;

/// File in memory (tmpfs).
const INITRD: &str = "/tmp/after.cpio";

fn play(context: &Context) -> Result<(), Finding> {
    assert_equal("cores", &online()?.as_str(), &"0-3")?;
    let _nodes = start_nodes(context)?;
    fs::write(INITRD, initrd(context, SCENARIO.machine.cpus)?)?;
    let kernel = path(&context.kernel("6.1")?);
    let initrd = format!("--initrd={INITRD}");
    let loaded = Command::new("kexec")
        .args(["--load", &kernel, &initrd, "--reuse-cmdline"])
        .output()?;
    Finding::unless(loaded.status.success(), || {
        format!("kexec: {}", String::from_utf8_lossy(&loaded.stderr))
    })?;
    end_by(&["kexec", "--exec", "--no-ifdown"])
}

/// The nodes' initial file system with another first process: if several archives have a file of
/// the same name, the last counts.
fn initrd(context: &Context, cores: u32) -> Result<Vec<u8>, Finding> {
    let init = [NEXT_KERNEL, INIT].concat();
    let init = init.replace("CORES", &cores.to_string());
    let archive = Initramfs::default()
        .program("init", init.as_bytes())?
        .file("success", &success(context)?)?;
    Ok([fs::read(context.node_initrd())?, archive.finish()?].concat())
}
