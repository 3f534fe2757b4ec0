//! Plays every scenario on the kernels that it names.

use std::cmp::Reverse;
use std::num::NonZeroUsize;
use std::sync::{Mutex, PoisonError};
use std::thread::available_parallelism;

use libtest_mimic::{Arguments, Failed, Trial};
use testbed::base::{Scenario, scenario};
use testbed::host::kernels::Flavour;
use testbed::host::machine::Accelerator;
use testbed::host::trial::{self, Conditions};

fn main() {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = arguments.test_threads.or(Some(machines_at_once()));
    // Those that take longest first: none of them is left at the end, while other cores idle.
    let mut scenarios = scenario::ALL.to_vec();
    scenarios.sort_by_key(|scenario| Reverse(scenario.limit));
    let trials = scenarios.into_iter().flat_map(|scenario| {
        scenario.bases.iter().map(move |&base| {
            Trial::test(format!("{}::{base}", scenario.name), move || {
                play(scenario, base)
            })
        })
    });
    libtest_mimic::run(&arguments, trials.collect()).exit();
}

/// Most machines at once: each has some GiB of memory.
const MACHINES_MAX: usize = 4;

/// One for each core: an emulated machine takes one, a virtual one hardly more.
fn machines_at_once() -> usize {
    available_parallelism()
        .map_or(1, NonZeroUsize::get)
        .min(MACHINES_MAX)
}

/// Locked while the accelerator is detected.
static DETECTION: Mutex<()> = Mutex::new(());

fn play(scenario: &Scenario, base: Flavour) -> Result<(), Failed> {
    let progress = &mut |line: &str| eprintln!("testbed: {line}");
    let accelerator = {
        let _alone = DETECTION.lock().unwrap_or_else(PoisonError::into_inner);
        Accelerator::detect(base, progress)?
    };
    let outcome = trial::run(scenario, Conditions::usual(base, accelerator), progress)?;
    progress(&format!(
        "{} on {base}: {:.0} s",
        scenario.name,
        outcome.elapsed.as_secs_f64()
    ));
    Ok(())
}
