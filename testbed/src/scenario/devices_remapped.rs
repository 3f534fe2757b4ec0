//! A machine whose IOMMU remaps interrupts.

use std::time::Duration;

use super::insula_command::{ask, attended, insula_json};
use super::spare::{self, DISK};
use super::test_node::{TestNode, add_unpacked_image};
use super::{Context, Finding, Module, Scenario, Shape};
use crate::kernels::Flavour;
use crate::machine::SpareDevices;

pub(super) const SCENARIO: Scenario = Scenario {
    name: "devices_remapped",
    proves: "with interrupt remapping devices are refused with the reason, and nodes without any work",
    machine: Shape {
        spare_devices: SpareDevices::BehindRemapping,
        ..Shape::USUAL
    },
    module: Module::Loaded,
    bases: &[Flavour::V6_12],
    limit: Duration::from_secs(120),
    soak_limit: None,
    play,
};

fn play(context: &Context) -> Result<(), Finding> {
    attended(|| {
        add_unpacked_image(context, "old", "6.1")?;
        let check = insula_json(&["machine", "check", "--json"])?;
        let findings = check["findings"].as_array().into_iter().flatten();
        let mut findings = findings.filter(|finding| finding["subject"] == "interrupt remapping");
        let told = findings
            .next()
            .is_some_and(|finding| finding["verdict"] == "untested");
        Finding::unless(told, || {
            format!("`machine check` does not tell of remapping: {check}")
        })?;

        let words = [
            "run", "--image", "old", "--memory", "256M", "--device", DISK,
        ];
        ask(&words)?.refused(
            1,
            &[
                "interrupt remapping blocks",
                "nothing was touched",
                "intremap=off",
            ],
        )?;
        spare::assert_the_bases()?;

        let node = TestNode::start("plain", &["--image", "old"], &["--memory", "256M"], "idle")?;
        node.assert_ready(&context.release("6.1")?)?;
        node.remove()
    })
}
