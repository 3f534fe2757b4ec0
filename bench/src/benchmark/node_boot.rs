//! Time from Enter to the node's init, compared with virtual machines.

use testbed::base::{Finding, Shape};
use testbed::host::kernels::Flavour;
use testbed::host::root::Root;

use super::{Benchmark, Row};
use crate::inside::{Inside, wait_until_ready};
use crate::microvm::{Executor, Microvm, SHORTER_BOOT};
use crate::outside::Outside;

const KERNELS: [&str; 2] = ["6.1", "6.12"];
const NODE: &str = "node";
const SIZE: [&str; 4] = ["--cpus", "1", "--memory", "256M"];

const START: &str = "insula run --image … --cpus 1 --memory 256M";
const QEMU: &str = "qemu-system-x86_64 -M microvm,x-option-roms=off,isa-serial=on,pit=off,pic=off \
                    -accel tcg -cpu max,-erms,-fsrm -smp 1 -m 256M … on the same computer, the emulated machine off";
const QEMU_KVM: &str = "qemu-system-x86_64 -M microvm,x-option-roms=off,isa-serial=on,pit=off,pic=off \
                        -accel kvm -cpu host -smp 1 -m 256M … inside the emulated machine";

/// The same rows for each kernel.
macro_rules! rows {
    ($($kernel:literal),+) => {
        &[$(
            Row::time(
                concat!("node-boot.", $kernel, ".pool"),
                concat!($kernel, " node, resident, from the pool"),
                START,
            )
            .beside(concat!("node-boot.", $kernel, ".microvm"))
            .drawn(),
            Row::time(
                concat!("node-boot.", $kernel, ".resident"),
                concat!($kernel, " node, resident, from the base"),
                START,
            )
            .beside(concat!("node-boot.", $kernel, ".microvm"))
            .drawn(),
            Row::time(
                concat!("node-boot.", $kernel, ".microvm"),
                concat!($kernel, " in a microvm, same emulation"),
                QEMU,
            )
            .drawn(),
            Row::time(
                concat!("node-boot.", $kernel, ".kvm"),
                concat!($kernel, " in a microvm with KVM, inside"),
                QEMU_KVM,
            )
            .beside(concat!("node-boot.", $kernel, ".pool"))
            .drawn(),
        )+]
    };
}

pub(super) const BENCHMARK: Benchmark = Benchmark {
    name: "node-boot",
    title: "Boot: from Enter to the node's init",
    how: "The end is the line of the node's init in its kernel's log, which is polled every 3 ms \
          in the node's memory. Nodes of one core and 256 MiB, started from a resident image, \
          from the base and from the pool. The peers boot the same kernel and the same initrd in \
          QEMU's smallest machine with one core and 256 MiB, with the same options to shorten the \
          boot (`cryptomgr.notests`, the time stamp counter's frequency, few lines to the \
          console, no PIT or PIC), until the same line comes out of the serial port: *microvm* on \
          the same translation (TCG) directly on the host while the emulated machine is off, so \
          that QEMU itself runs at full speed; *KVM* inside the emulated machine, with nested \
          paging and the SVM instructions emulated by QEMU, as today's usual way. Exits to the \
          hypervisor cost more in emulation than on hardware: KVM's figure is too high by an \
          unknown amount.",
    machine: Shape::USUAL,
    root: Root::Bench,
    rounds: 2,
    inside,
    outside: Some(outside),
    counted: None,
    series: &[],
    rows: rows!["6.1", "6.12"],
};

fn inside(inside: &Inside) -> Result<(), Finding> {
    inside.load_kvm()?;
    for kernel in KERNELS {
        inside.add_image(kernel, kernel, "compressed")?;
    }
    for _ in 0..inside.count {
        for kernel in KERNELS {
            node(inside, kernel, "resident")?;
            inside
                .command
                .run(&[&["machine", "reserve"], &SIZE[..]].concat())?;
            node(inside, kernel, "pool")?;
            inside.command.run(&["machine", "release"])?;
            let took = inside.boot_in_kvm(kernel)?;
            inside.record(&format!("node-boot.{kernel}.kvm"), took)?;
        }
    }
    Ok(())
}

fn node(inside: &Inside, kernel: &str, way: &str) -> Result<(), Finding> {
    let words = [&["--image", kernel], &SIZE[..]].concat();
    let start = inside.command.start(NODE, &words)?;
    let ready = wait_until_ready(&inside.driver, &start.name)?;
    inside.record(&format!("node-boot.{kernel}.{way}"), ready - start.enter)?;
    inside.command.run(&["rm", "--force", NODE]).map(drop)
}

fn outside(outside: &Outside) -> Result<(), Finding> {
    for _ in 0..outside.count {
        for flavour in Flavour::USUAL {
            let took = Microvm {
                executor: Executor::Tcg,
                kernel: &outside.kernel(flavour)?,
                initrd: outside.initrd(),
                tsc_khz: outside.tsc_khz,
                append: SHORTER_BOOT,
                cores: 1,
                devices: &[],
                core: None,
            }
            .boot()?;
            outside.record(&format!("node-boot.{flavour}.microvm"), took)?;
        }
    }
    Ok(())
}
