//! QEMU's command line.

use std::path::Path;
use std::process::Command;

use super::process::Console;
use super::{Accelerator, Machine, Prepared, monitor, tsc};
use crate::host::tool;

/// First NVMe namespace with a kernel's files: 1 is the root, 2 the payload, 3 the result.
pub(super) const FIRST_KERNEL_DISK: usize = 4;
/// All that TCG supports, but its `rep movsb` copies byte by byte, so that kernels must not prefer
/// it.
const TCG_MODEL: &str = "max,-erms,-fsrm";
/// Parameters for an emulated machine. Without them the kernel would distrust the emulated time
/// stamp counter and read a slow clock, calibrate a loop on each core, and panic if its timer did
/// not tick four times within some milliseconds, in which a loaded host may not have run the
/// emulator.
const FOR_EMULATION: &str = "tsc=reliable lpj=10000000 no_timer_check";
/// The kernel boots on one core, and the first process brings the others online, since a booting
/// kernel patches its own code, which is where the emulator fails (see `emulator_fault`).
const FOR_PARALLEL_EMULATION: &str = "maxcpus=1";
/// Ctrl-] x ends a machine whose shell does not answer.
const ESCAPE_CHARACTER: &str = "0x1d";

/// Command that runs the machine. `setpriv` has QEMU killed when this process dies.
pub(super) fn command(machine: &Machine, prepared: &Prepared, console: Console) -> Command {
    let mut command = Command::new("setpriv");
    command.env("PATH", tool::search_path());
    command.envs(prepared.qemu.environment());
    command
        .args(["--pdeathsig", "KILL"])
        .arg(prepared.qemu.program());
    command.args(prepared.qemu.arguments());
    command.args(["-M", "q35", "-nodefaults", "-display", "none"]);
    if !machine.resets {
        // A reset ends QEMU.
        command.arg("-no-reboot");
    }
    command.args(processors(machine));
    command.args(memory(machine));
    command.args(boot(machine, prepared));
    command.args(machine.spare_devices.iommu());
    command.args(disks(prepared));
    command.args(consoles(prepared, console));
    let (disk, served) = (prepared.spare_disk(), prepared.served());
    command.args(machine.spare_devices.words(&disk, &served));
    command.args(&machine.qemu_arguments);
    command
}

fn processors(machine: &Machine) -> Vec<String> {
    let (accelerator, model) = match machine.accelerator {
        Accelerator::Tcg => ("tcg,thread=single", TCG_MODEL),
        Accelerator::TcgParallel => ("tcg,thread=multi", TCG_MODEL),
        Accelerator::Kvm => ("kvm", "host"),
    };
    let words = [
        "-accel",
        accelerator,
        "-cpu",
        model,
        "-smp",
        // Kernels reject a package whose cores are on several NUMA nodes.
        &format!("{},sockets={}", machine.cpus, machine.numa_nodes.max(1)),
    ];
    words.map(str::to_owned).to_vec()
}

fn memory(machine: &Machine) -> Vec<String> {
    let mut words = vec!["-m".to_owned(), format!("{}M", machine.memory_mib)];
    if machine.numa_nodes < 2 {
        return words;
    }
    let nodes = machine.numa_nodes;
    // The last takes the remainder.
    let share = |total: u64, node: u32| {
        let each = total / u64::from(nodes);
        let first = each * u64::from(node);
        first..if node + 1 == nodes {
            total
        } else {
            first + each
        }
    };
    for node in 0..nodes {
        let (cpus, memory) = (
            share(machine.cpus.into(), node),
            share(machine.memory_mib, node),
        );
        let size = memory.end - memory.start;
        words.extend([
            "-object".to_owned(),
            format!("memory-backend-ram,id=memory{node},size={size}M"),
        ]);
        let last = cpus.end.saturating_sub(1);
        let cpus = format!("cpus={}-{last}", cpus.start);
        words.extend([
            "-numa".to_owned(),
            format!("node,nodeid={node},{cpus},memdev=memory{node}"),
        ]);
    }
    words
}

fn boot(machine: &Machine, prepared: &Prepared) -> Vec<String> {
    let base = &prepared.kernels[0];
    let emulation = format!("{FOR_EMULATION} tsc_early_khz={}", tsc::khz());
    let emulation = match machine.accelerator {
        Accelerator::Tcg => emulation,
        Accelerator::TcgParallel => format!("{emulation} {FOR_PARALLEL_EMULATION}"),
        Accelerator::Kvm => String::new(),
    };
    // A panic ends the machine at once.
    let line = format!("console=ttyS0 panic=-1 {emulation} {}", machine.append);
    let (kernel, initrd) = (base.vmlinuz(), base.initrd());
    let words = [
        "-kernel",
        &text(&kernel),
        "-initrd",
        &text(&initrd),
        "-append",
        line.trim_end(),
    ];
    words.map(str::to_owned).to_vec()
}

/// All disks are namespaces of one controller: several controllers would be found in an order that
/// varies. The controller is in a subsystem that may have several, as QEMU from 9 on has it anyway:
/// a kernel then lists the path to a namespace beside the namespace.
fn disks(prepared: &Prepared) -> Vec<String> {
    let mut images = vec![
        (prepared.root.clone(), "snapshot=on"),
        (prepared.payload(), "readonly=on"),
        (prepared.result(), "snapshot=off"),
    ];
    debug_assert_eq!(images.len() + 1, FIRST_KERNEL_DISK);
    images.extend(
        prepared
            .kernels
            .iter()
            .map(|kernel| (kernel.disk(), "readonly=on")),
    );

    let mut words = [
        "-device",
        "nvme-subsys,id=subsystem",
        "-device",
        "nvme,id=disks,subsys=subsystem,serial=testbed",
    ]
    .map(str::to_owned)
    .to_vec();
    for (number, (image, mode)) in (1..).zip(images) {
        // A comma would end the value, unless doubled.
        let image = text(&image).replace(',', ",,");
        let drive = format!("if=none,id=disk{number},format=raw,{mode},file={image}");
        let device = format!("nvme-ns,bus=disks,nsid={number},drive=disk{number}");
        words.extend(["-drive".to_owned(), drive, "-device".to_owned(), device]);
    }
    words
}

fn consoles(prepared: &Prepared, console: Console) -> Vec<String> {
    let log = text(&prepared.log()).replace(',', ",,");
    let log = format!("file,id=log,path={log}");
    let terminal = match console {
        Console::Terminal => "stdio,id=terminal,signal=off,mux=on",
        // The monitor has standard input.
        Console::Captured { .. } => "file,id=terminal,path=/dev/stdout",
    };
    let words = [
        "-chardev",
        &log,
        "-serial",
        "chardev:log",
        "-echr",
        ESCAPE_CHARACTER,
        "-chardev",
        terminal,
        "-device",
        "virtio-serial-pci",
        "-device",
        "virtconsole,chardev=terminal",
    ];
    let monitor: &[&str] = match console {
        Console::Terminal => &[],
        Console::Captured { .. } => &monitor::ARGUMENTS,
    };
    let words = words.iter().chain(monitor);
    words.map(|&word| word.to_owned()).collect()
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::kernels::Flavour;

    #[test]
    fn numa_nodes_share_evenly() {
        let mut machine = Machine::new(Flavour::V6_1);
        (machine.cpus, machine.memory_mib, machine.numa_nodes) = (5, 4001, 2);
        let words = memory(&machine).join(" ");
        assert!(words.contains("size=2000M"), "{words}");
        assert!(words.contains("size=2001M"), "{words}");
        assert!(
            words.contains("cpus=0-1,") && words.contains("cpus=2-4,"),
            "{words}"
        );
    }

    #[test]
    fn one_numa_node_takes_no_arguments() {
        assert_eq!(memory(&Machine::new(Flavour::V6_1)), ["-m", "4096M"]);
    }
}
