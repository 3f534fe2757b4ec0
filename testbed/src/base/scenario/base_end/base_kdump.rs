//! The base crashes while nodes run, and a crash kernel dumps its memory.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use insula_driver::Driver;
use insula_driver::name::Name;
use insula_image::Initramfs;

use super::{NEXT_KERNEL, end_by, success};
use crate::base::support::insula_command::{assert_equal, command, insula};
use crate::base::support::nodes::test_node::{TestNode, add_unpacked_image, path};
use crate::base::support::spare::{DISK, NETWORK};
use crate::base::{Context, Finding, Module, Scenario, Shape, splat};
use crate::host::kernels::Flavour;
use crate::host::machine::SpareDevices;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "base_kdump",
    proves: "under a crash kernel nothing of a node runs, nor a device of its, and the dump is whole",
    machine: Shape {
        memory_mib: 2560,
        spare_devices: SpareDevices::Plain,
        append: "crashkernel=256M",
        ..Shape::USUAL
    },
    module: Module::Loaded,
    bases: &[Flavour::V6_12],
    limit: Duration::from_secs(400),
    soak_limit: None,
    play,
};

/// First process under the crash kernel. The DMA of the node's network card must have been disabled
/// by the module: the DMA of the base's own virtio devices, whose driver this kernel has not loaded
/// either, is still on, so nobody else disables it. (The driver of disks is built in, and has reset
/// them.)
const INIT: &str = r#"
# dma FUNCTION: whether bus mastering is enabled: bit 2 of its command register
dma() {
	command=$(od -An -tu1 -j4 -N1 "/sys/bus/pci/devices/$1/config")
	echo $((command >> 2 & 1))
}

# functions: virtio PCI functions, each with that bit
functions() {
	for function in /sys/bus/pci/devices/*; do
		read -r vendor < "$function/vendor"
		[ "$vendor" = 0x1af4 ] && echo "${function##*/}=$(dma "${function##*/}")"
	done
}

found=$(functions | tr '\n' ' ')
echo "testbed: after the crash: $found" > /dev/kmsg
case "$found" in
0000:00:*=1*NETWORK=0*)
	if /probe dump RANGES > /dump.log 2>&1; then
		store
	fi
	cat /dump.log > /dev/kmsg
	;;
esac
poweroff -f
"#;

/// Keeps the crash kernel's driver from enabling the functions' DMA again.
const NO_DRIVER: &str = "initcall_blacklist=virtio_pci_driver_init";
/// File in memory (tmpfs).
const INITRD: &str = "/tmp/crash.cpio";
const PROBE: &str = "/payload/bin/insula-probe";

fn play(context: &Context) -> Result<(), Finding> {
    add_unpacked_image(context, "old", "6.1")?;
    add_unpacked_image(context, "new", "6.12")?;
    let size = ["--cpus", "1", "--memory", "256M"];
    let one = TestNode::start("one", &["--image", "old"], &size, "compute")?;
    let devices = [&size[..], &["--device", DISK, "--device", NETWORK]].concat();
    let two = TestNode::start("two", &["--image", "new"], &devices, "devices")?;
    let (quiet, _program) = delegating_node()?;
    let names = [one.name.as_str(), &two.name, quiet];
    let ranges: Result<Vec<_>, _> = names.into_iter().map(chunks).collect();
    load(context, &ranges?.concat())?;
    one.assert_works()?;
    two.wait_for_line("disk rounds=")?;
    fs::write("/dev/kmsg", splat::EXPECTED)?;
    end_by(&["sh", "-c", "echo c > /proc/sysrq-trigger"])
}

/// Node of the lightweight kernel with a program that writes without end, each write delegated. Returns
/// the node's name, and the program's proxy.
fn delegating_node() -> Result<(&'static str, Child), Finding> {
    let name = "quiet";
    let node = ["run", "--image", "lwk", "--name", name, "--cpus", "1"];
    insula(&[&node[..], &["--memory", "64M"]].concat())?;
    let writes = "echo begins; exec yes > /dev/null";
    let mut program = command(&["exec", name, "--", "sh", "-c", writes])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    if let Some(output) = program.stdout.take() {
        BufReader::new(output).read_line(&mut line)?;
    }
    assert_equal("what the program says", &line.as_str(), &"begins\n")?;
    Ok((name, program))
}

/// Physical ranges of a node's memory.
fn chunks(name: &str) -> Result<Vec<String>, Finding> {
    let name: Name = name.parse()?;
    let memory = Driver::open()?.open_node(&name.to_abi())?.memory()?;
    let chunks = memory.chunks()?;
    let range = |chunk: &insula_abi::Chunk| format!("{:x}+{:x}", chunk.start, chunk.size);
    Ok(chunks.iter().map(range).collect())
}

/// Loads the crash kernel.
fn load(context: &Context, ranges: &[String]) -> Result<(), Finding> {
    let init = [NEXT_KERNEL, INIT].concat();
    let init = init
        .replace("RANGES", &ranges.join(" "))
        .replace("NETWORK", NETWORK);
    let archive = Initramfs::default()
        .program("init", init.as_bytes())?
        .program("probe", &fs::read(PROBE)?)?
        .file("success", &success(context)?)?;
    fs::write(
        INITRD,
        [fs::read(context.node_initrd())?, archive.finish()?].concat(),
    )?;
    let kernel = path(&context.kernel(&context.version_of_the_base()?)?);
    let line = fs::read_to_string("/proc/cmdline")?;
    let words = line
        .split_whitespace()
        .filter(|word| !word.starts_with("crashkernel="));
    let line = words
        .chain(["nr_cpus=1", NO_DRIVER])
        .collect::<Vec<_>>()
        .join(" ");
    let loaded = Command::new("kexec")
        .args(["--load-panic", &kernel, &format!("--initrd={INITRD}")])
        .arg(format!("--command-line={line}"))
        .output()?;
    Finding::unless(loaded.status.success(), || {
        format!("kexec: {}", String::from_utf8_lossy(&loaded.stderr))
    })
}
