//! Loading and unloading the module leaves no trace in the base.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use insula_driver::Driver;

use crate::base::scenario::MITIGATIONS;
use crate::base::support::insula_module::{LoadedModule, module_is_loaded};
use crate::base::{BaseState, Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "base",
    proves: "insula.ko loads, offers /dev/insula, and unloads without a trace, again and again",
    machine: Shape {
        append: MITIGATIONS,
        ..Shape::USUAL
    },
    module: Module::ByScenario,
    bases: &Flavour::USUAL,
    limit: Duration::from_secs(120),
    soak_limit: Some(Duration::from_secs(1800)),
    play,
};

fn play(context: &Context) -> Result<(), Finding> {
    let device = Path::new("/dev/insula");
    let before = BaseState::capture()?;
    for _ in 0..context.count(3, 300) {
        Finding::unless(!device.exists(), || {
            "/dev/insula is there without the module".into()
        })?;
        let module = LoadedModule::load()?;
        Finding::unless(module_is_loaded()?, || {
            "insula.ko is not among the modules".into()
        })?;
        Finding::unless(device.exists(), || "insula.ko offers no /dev/insula".into())?;
        module.unload()?;
        BaseState::capture()?.assert_same(&before)?;
    }
    leaves_the_firmware_its_data()
}

/// Address of the firmware's pointer to its extended data (EBDA), 16 bits.
const EXTENDED_DATA: u64 = 0x40e;
/// Address to which the pointer is moved, and first address that nodes can have.
const MOVED: u64 = 0x8_0000;
const FIRST: u64 = 0x1_0000;

/// Memory below 1 MiB that the firmware uses is not given to nodes, whatever the memory map says of
/// it.
fn leaves_the_firmware_its_data() -> Result<(), Finding> {
    let most = MOVED - FIRST;
    let usual = memory_for_starts()?;
    Finding::unless(usual > most, || {
        format!("{usual:#x} bytes below 1 MiB: none of them are in question")
    })?;
    let memory = File::options().read(true).write(true).open("/dev/mem")?;
    let mut word = [0; 2];
    memory.read_exact_at(&mut word, EXTENDED_DATA)?;
    memory.write_all_at(&((MOVED >> 4) as u16).to_le_bytes(), EXTENDED_DATA)?;
    let left = memory_for_starts();
    memory.write_all_at(&word, EXTENDED_DATA)?;
    let left = left?;
    Finding::unless(left <= most, || {
        format!("{left:#x} bytes below 1 MiB for nodes, of which {most:#x} are not the firmware's")
    })
}

/// Bytes below 1 MiB in which cores can be started, according to a freshly loaded module.
fn memory_for_starts() -> Result<u64, Finding> {
    let module = LoadedModule::load()?;
    let (machine, _) = Driver::open()?.machine()?;
    module.unload()?;
    Ok(machine.lowmem_total)
}
