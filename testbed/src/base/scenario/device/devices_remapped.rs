//! Machine whose IOMMU remaps interrupts.

use std::time::Duration;

use crate::base::support::insula_command::{insula_json, try_insula, with_cleanup};
use crate::base::support::nodes::test_node::{TestNode, add_unpacked_image};
use crate::base::support::spare::{self, DISK};
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;
use crate::host::machine::SpareDevices;

pub(crate) const SCENARIO: Scenario = Scenario {
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
    with_cleanup(|| {
        add_unpacked_image(context, "old", "6.1")?;
        let check = insula_json(&["machine", "check", "--json"])?;
        let findings = check["findings"].as_array().into_iter().flatten();
        let mut findings = findings.filter(|finding| finding["subject"] == "interrupt remapping");
        let reported = findings
            .next()
            .is_some_and(|finding| finding["verdict"] == "untested");
        Finding::unless(reported, || {
            format!("`machine check` does not report remapping: {check}")
        })?;

        let words = [
            "run", "--image", "old", "--memory", "256M", "--device", DISK,
        ];
        try_insula(&words)?.refused(
            1,
            &[
                "interrupt remapping blocks",
                "nothing was touched",
                "intremap=off",
            ],
        )?;
        spare::assert_base_has_both()?;

        let node = TestNode::start("plain", &["--image", "old"], &["--memory", "256M"], "idle")?;
        node.assert_ready(&context.release("6.1")?)?;
        node.remove()
    })
}
