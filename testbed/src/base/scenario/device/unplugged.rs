//! A device is unplugged while its node gets memory, and gives memory back, that it can reach by
//! DMA.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use fastrand::Rng;
use insula_abi::{DEVICE_IOMMU, GRANULE, Reason, Request};
use insula_driver::name::Name;
use insula_driver::{Driver, Node};
use insula_node::device::PciAddress;

use crate::base::Finding;
use crate::base::support::hold::Hold;
use crate::base::support::insula_command::{assert_equal, wait_for};
use crate::base::support::nodes::idle_node::{IdleMemory, SUPPLY};
use crate::base::support::spare::{self, NETWORK};

/// Number of unplugs.
const ROUNDS: u32 = 12;
/// Memory that comes and goes: in many chunks, each of which is mapped in the IOMMU by itself.
const CHUNKS: u32 = 48;
const MORE: Request = Request {
    size: CHUNKS as u64 * GRANULE,
    chunk_max: GRANULE,
    ..SUPPLY
};
/// Latest moment of the unplug in a round of growing and shrinking, which takes less.
const LATEST_US: u64 = 40_000;

/// Function of the module that maps added memory in a device's IOMMU domain.
const MAPS: &str = "insula_iommu_domain_extend";
/// Time in which a device could be removed too early.
const EARLY: Duration = Duration::from_secs(1);

/// The device is unplugged just when memory is about to be mapped for it: its IOMMU domain must
/// last until that is done.
pub(super) fn while_memory_is_mapped() -> Result<(), Finding> {
    let driver = Driver::open()?;
    let (memory, node) = start(&driver)?;
    let hold = Hold::asleep(MAPS)?;
    std::thread::scope(|scope| {
        let resizing = scope.spawn(|| grow_and_shrink(&driver, &node));
        hold.wait()?;
        let unplugging = scope.spawn(unplug);
        std::thread::sleep(EARLY);
        let is_early = unplugging.is_finished();
        hold.release()?;
        let failed = |_| Finding::new("a thread failed");
        unplugging.join().map_err(failed)??;
        resizing.join().map_err(failed)??;
        assert_equal("a removal before the memory is mapped", &is_early, &false)
    })?;
    drop((hold, memory));
    end(&node)
}

/// The node loses the device, without other effects.
pub(super) fn while_memory_comes_and_goes() -> Result<(), Finding> {
    let mut rng = Rng::new();
    let driver = Driver::open()?;
    for round in 0..ROUNDS {
        let again = unplug_once(&driver, rng.u64(..LATEST_US));
        again.map_err(|finding| finding.when(&format!("round {round}")))?;
    }
    spare::assert_base_has_both()
}

fn unplug_once(driver: &Driver, after_us: u64) -> Result<(), Finding> {
    let (_memory, node) = start(driver)?;
    let (times, over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let resizing = scope.spawn(|| -> Result<(), Finding> {
            while !over.load(Ordering::Relaxed) {
                grow_and_shrink(driver, &node)?;
                times.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
        let unplugged = wait_for("memory to be added and removed", || {
            Ok((times.load(Ordering::Relaxed) > 0).then_some(()))
        })
        .and_then(|()| {
            std::thread::sleep(Duration::from_micros(after_us));
            unplug()
        });
        over.store(true, Ordering::Relaxed);
        let resized = resizing
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        unplugged.and(resized)
    })?;
    end(&node)
}

/// Starts a node that has the device.
fn start(driver: &Driver) -> Result<(IdleMemory, Node), Finding> {
    let memory = IdleMemory::allocate(driver, &SUPPLY)?;
    let name = "unplugged".parse::<Name>()?.to_abi();
    let node = driver.create_node(&name, &[], &[1], &memory.object)?;
    node.add_device(NETWORK.parse::<PciAddress>()?.to_abi())?;
    let flags = node.devices()?.first().map_or(0, |device| device.flags);
    assert_equal("IOMMU flag", &(flags & DEVICE_IOMMU), &DEVICE_IOMMU)?;
    node.start(&memory.start_parameters())?;
    Ok((memory, node))
}

fn unplug() -> Result<(), Finding> {
    let remove = format!("/sys/bus/pci/devices/{NETWORK}/remove");
    Ok(fs::write(remove, "1")?)
}

/// Removes the node; the base gets the device back.
fn end(node: &Node) -> Result<(), Finding> {
    node.stop(Reason::KILLED)?;
    node.remove()?;
    plug_in()
}

fn grow_and_shrink(driver: &Driver, node: &Node) -> Result<(), Finding> {
    let more = driver.create_memory()?;
    more.grow(&MORE)?;
    node.grow(&[], Some(&more))?;
    Ok(node.shrink(&[], CHUNKS)?)
}

/// Waits until the base has found it again.
fn plug_in() -> Result<(), Finding> {
    fs::write("/sys/bus/pci/rescan", "1")?;
    wait_for("the base's driver of the device", || {
        Ok(spare::driver(NETWORK))
    })
    .map(drop)
}
