//! The module comes and goes, and the base does not notice.

use std::path::Path;
use std::time::Duration;

use super::{BaseState, Context, Finding, LoadedModule, Module, Scenario, Shape, module_is_loaded};
use crate::kernels::Flavour;

pub(super) const SCENARIO: Scenario = Scenario {
    name: "base",
    proves: "insula.ko loads, offers /dev/insula, and unloads without a trace, again and again",
    machine: Shape::USUAL,
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
    Ok(())
}
