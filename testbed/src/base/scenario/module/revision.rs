//! Command and module of different revisions of the interface.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::time::Duration;

use insula_abi::{Hello, REVISION, ioctl};
use nix::errno::Errno;
use zerocopy::IntoBytes;

use crate::base::support::insula_command::assert_equal;
use crate::base::support::raw_device::{Answer, Arena, Argument, call};
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "revision",
    proves: "the module refuses all callers of another revision of the interface",
    machine: Shape::USUAL,
    module: Module::Loaded,
    bases: &[Flavour::V6_1],
    limit: Duration::from_secs(120),
    soak_limit: None,
    play,
};

/// All requests of the control descriptor but the greeting.
const REQUESTS: [u32; 12] = [
    ioctl::MACHINE,
    ioctl::POOL_RESERVE,
    ioctl::POOL_RELEASE,
    ioctl::MEMORY_CREATE,
    ioctl::IMAGE_ADD,
    ioctl::IMAGE_OPEN,
    ioctl::IMAGE_REMOVE,
    ioctl::IMAGE_LIST,
    ioctl::IMAGE_REPLACE,
    ioctl::NODE_CREATE,
    ioctl::NODE_OPEN,
    ioctl::NODE_LIST,
];

fn play(_: &Context) -> Result<(), Finding> {
    let device = File::options().read(true).write(true).open("/dev/insula")?;
    refuses_all(&device, "before any greeting")?;
    let ours = Hello::default();
    let others = [
        Hello {
            revision: REVISION + 1,
            ..ours
        },
        Hello {
            revision: 0,
            ..ours
        },
        Hello { magic: 0, ..ours },
        Hello {
            reserved: 1,
            ..ours
        },
    ];
    for other in others {
        let (answer, revision) = greet(&device, other);
        assert_equal(
            &format!("answer to {other:?}"),
            &answer,
            &Err(Errno::EPROTO),
        )?;
        // The caller can then report the module's revision.
        assert_equal("reported revision", &revision, &u64::from(REVISION))?;
        refuses_all(&device, &format!("after {other:?}"))?;
    }
    assert_equal(
        "answer to our own greeting",
        &greet(&device, ours).0,
        &Ok(0),
    )?;
    let list = number(&device, ioctl::NODE_LIST, &Arena::new(8));
    assert_equal("a call after the greeting", &list, &Ok(0))
}

fn number(device: &File, request: u32, arena: &Arena) -> Result<i32, Errno> {
    match call(device.as_raw_fd(), request, Argument::Arena(arena))? {
        Answer::Number(number) => Ok(number),
        Answer::Descriptor(_) => Ok(0),
    }
}

/// Greets the module. Returns the result, and the revision that it reported with the 32 bits after.
fn greet(device: &File, hello: Hello) -> (Result<i32, Errno>, u64) {
    let arena = Arena::new(8);
    arena.put(0, hello.as_bytes());
    (number(device, ioctl::HELLO, &arena), arena.word(1))
}

/// Every request is refused, with a structure of zeros.
fn refuses_all(device: &File, situation: &str) -> Result<(), Finding> {
    let arena = Arena::new(64);
    for request in REQUESTS {
        let answer = number(device, request, &arena);
        let what = format!("request {request:#x} {situation}");
        assert_equal(&what, &answer, &Err(Errno::EPROTO))?;
    }
    Ok(())
}
