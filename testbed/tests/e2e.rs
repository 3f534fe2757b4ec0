//! Plays every scenario on every usual kernel, one machine at a time.

use libtest_mimic::{Arguments, Failed, Trial};
use testbed::kernels::Flavour;
use testbed::machine::Accelerator;
use testbed::scenario::{self, Scenario};
use testbed::trial;

fn main() {
    let mut arguments = Arguments::from_args();
    // Machines that run side by side would take each other's time.
    arguments.test_threads = Some(1);
    let trials = scenario::ALL.iter().flat_map(|&scenario| {
        Flavour::USUAL.map(|base| {
            Trial::test(format!("{}::{base}", scenario.name), move || {
                play(scenario, base)
            })
        })
    });
    libtest_mimic::run(&arguments, trials.collect()).exit();
}

fn play(scenario: &Scenario, base: Flavour) -> Result<(), Failed> {
    let tell = &mut |line: &str| eprintln!("testbed: {line}");
    let accelerator = Accelerator::detect(base, tell)?;
    trial::run(scenario, base, accelerator, false, tell)?;
    Ok(())
}
