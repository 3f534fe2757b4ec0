//! Tests of restart policies.

use proptest::prelude::*;

use super::*;

const CRASH: Ending = Ending::Crash {
    asked_for_reset: false,
};
const ENDINGS: [Ending; 7] = [
    Ending::Off,
    Ending::Reset,
    CRASH,
    Ending::Hang,
    Ending::DeviceLost,
    Ending::Violation,
    Ending::Finding { restart: false },
];
const SOON: Duration = Duration::from_secs(1);

fn policy(words: &str) -> Policy {
    Policy {
        restart: words.parse().unwrap(),
        ..Policy::default()
    }
}

fn restarted(policy: &Policy) -> [bool; 7] {
    let decide = |ending| policy.decide(ending, SOON, History::default());
    ENDINGS.map(|ending| decide(ending) != Decision::StayStopped)
}

#[test]
fn policies() {
    // Off, reset, crash, hang, lost device, violation, finding. A reboot is not subject to the policy.
    assert_eq!(
        restarted(&policy("no")),
        [false, true, false, false, false, false, false]
    );
    assert_eq!(
        restarted(&policy("on-failure")),
        [false, true, true, true, true, true, true]
    );
    assert_eq!(restarted(&policy("always")), [true; 7]);
}

#[test]
fn without_reboot_a_reset_counts_as_power_off() {
    let without = |words| Policy {
        reboot: false,
        ..policy(words)
    };
    assert_eq!(restarted(&without("no")), [false; 7]);
    assert_eq!(
        restarted(&without("on-failure")),
        [false, false, true, true, true, true, true]
    );
    assert_eq!(restarted(&without("always")), [true; 7]);
}

#[test]
fn a_hang_is_handled_as_set() {
    let policy = Policy {
        on_hang: OnHang::Restart,
        ..Policy::default()
    };
    assert_eq!(
        restarted(&policy),
        [false, true, false, true, false, false, false]
    );
}

#[test]
fn findings_are_handled_as_set() {
    let rules = |text| Rules::parse(text).unwrap();
    let policy = Policy::default();
    assert_eq!(policy.watched(Some(&rules("[on]\noops = 'stop'"))), policy);
    let oops = policy.watched(Some(&rules("[on]\noops = 'restart'")));
    assert_eq!(
        oops.keep_cpus() ^ policy.keep_cpus(),
        abi::Reason::FINDING.bit()
    );
    let decide = |policy: Policy, ending| {
        policy.decide(ending, SOON, History::default()) != Decision::StayStopped
    };
    let findings = [false, true].map(|restart| Ending::Finding { restart });
    assert_eq!(findings.map(|ending| decide(oops, ending)), [false, true]);
    assert!(!decide(oops, CRASH));
    let panic = policy.watched(Some(&rules("[on]\npanic = 'restart'")));
    assert!(decide(panic, CRASH));
    assert_ne!(panic.keep_cpus() & abi::Reason::CRASHED.bit(), 0);
}

#[test]
fn the_panic_option_is_honoured() {
    let policy = Policy {
        panic_s: 7,
        ..Policy::default()
    };
    let after = |history| match policy.decide(CRASH, SOON, history) {
        Decision::Restart { after, .. } => after,
        Decision::StayStopped => panic!("not restarted"),
    };
    assert_eq!(after(History::default()), Duration::from_secs(7));
    let often = History {
        restarts: 0,
        short_runs: 20,
    };
    assert_eq!(after(often), DELAY_MAX);
    let at_once = Policy {
        panic_s: -1,
        ..Policy::default()
    };
    assert_eq!(
        restarted(&at_once),
        [false, true, true, false, false, false, false]
    );
    // The kernel itself has obeyed a `panic=` that was set in the node.
    let crash = Ending::Crash {
        asked_for_reset: true,
    };
    assert_ne!(
        Policy::default().decide(crash, SOON, History::default()),
        Decision::StayStopped
    );
}

#[test]
fn failures_are_counted_and_reboots_are_not() {
    let policy = policy("on-failure:2");
    let mut history = History::default();
    for _ in 0..2 {
        let Decision::Restart { history: after, .. } = policy.decide(CRASH, SOON, history) else {
            panic!("not restarted after {history:?}");
        };
        history = after;
        match policy.decide(Ending::Reset, SOON, history) {
            Decision::Restart { history: after, .. } => history = after,
            Decision::StayStopped => panic!("a reboot was not restarted"),
        }
    }
    assert_eq!(policy.decide(CRASH, SOON, history), Decision::StayStopped);
}

/// The delays before consecutive restarts.
fn waits(policy: &Policy, ending: Ending, ran: Duration) -> Vec<u64> {
    let mut history = History::default();
    let mut waits = Vec::new();
    for _ in 0..12 {
        let Decision::Restart {
            after,
            history: next,
        } = policy.decide(ending, ran, history)
        else {
            break;
        };
        waits.push(u64::try_from(after.as_millis()).unwrap());
        history = next;
    }
    waits
}

#[test]
fn the_delay_doubles_up_to_a_minute() {
    let doubling = [
        100, 200, 400, 800, 1600, 3200, 6400, 12_800, 25_600, 51_200, 60_000, 60_000,
    ];
    assert_eq!(waits(&policy("always"), CRASH, SOON), doubling);
    let reboots = waits(&policy("no"), Ending::Reset, SOON);
    assert_eq!((reboots[0], &reboots[1..]), (0, &doubling[..11]));
}

#[test]
fn a_long_run_resets_the_delay() {
    let waits = waits(&policy("always"), CRASH, STABLE_AFTER);
    assert_eq!(waits, [100; 12]);
}

#[test]
fn failed_nodes_are_never_removed() {
    let once = Policy {
        remove: true,
        ..Policy::default()
    };
    for in_order in [abi::Reason::POWER_OFF, abi::Reason::KILLED] {
        assert!(once.removes(in_order) && !Policy::default().removes(in_order));
    }
    let failed = [
        abi::Reason::CRASHED,
        abi::Reason::HUNG,
        abi::Reason::DEVICE_LOST,
        abi::Reason::VIOLATION,
        abi::Reason::FINDING,
        abi::Reason::BASE,
    ];
    assert!(!failed.into_iter().any(|reason| once.removes(reason)));
}

#[test]
fn policies_as_text() {
    for words in ["no", "on-failure", "on-failure:3", "always"] {
        let policy: Restart = words.parse().unwrap();
        assert_eq!(policy.to_string(), words);
        let json = serde_json::to_string(&policy).unwrap();
        assert_eq!(serde_json::from_str::<Restart>(&json).unwrap(), policy);
    }
    for words in [
        "",
        "yes",
        "always:2",
        "on-failure:",
        "on-failure:0",
        "on-failure:-1",
    ] {
        assert!(words.parse::<Restart>().is_err(), "{words}");
    }
}

proptest! {
    #[test]
    fn no_delay_is_longer_than_a_minute_or_the_panic_option(
        ran_ms in 0_u64..100_000,
        restarts in 0_u32..,
        short_runs in 0_u32..,
        panic_s in -5_i32..100,
    ) {
        let policy = Policy { panic_s, ..policy("always") };
        let history = History { restarts, short_runs };
        for ending in ENDINGS {
            let decision = policy.decide(ending, Duration::from_millis(ran_ms), history);
            let Decision::Restart { after, .. } = decision else { panic!("not restarted") };
            prop_assert!(after <= DELAY_MAX.max(Duration::from_secs(100)));
        }
    }
}
