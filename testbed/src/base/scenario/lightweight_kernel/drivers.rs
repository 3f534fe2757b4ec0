//! A disk driver on a node of the lightweight kernel: a file server drives an NVMe controller that the node
//! was given, and what programs write there is there for Linux.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::base::support::insula_command::{
    assert_equal, command, insula, insula_json, try_insula, wait_for, with_cleanup,
};
use crate::base::support::resources::{Resources, assert_unchanged};
use crate::base::support::spare::{self, DISK};
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;
use crate::host::machine::SpareDevices;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "drivers",
    proves: "a program of a node drives a disk: files survive its death, Linux finds them, and nothing is left when it ends",
    machine: Shape {
        spare_devices: SpareDevices::Plain,
        ..Shape::USUAL
    },
    module: Module::Loaded,
    bases: &[Flavour::V6_12],
    limit: Duration::from_secs(600),
    soak_limit: Some(Duration::from_secs(1200)),
    play,
};

const NODE: &str = "quiet";
const RUN: [&str; 11] = [
    "run", "--image", "lwk", "--cpus", "2", "--memory", "192M", "--device", DISK, "--name", NODE,
];
const PROBE: &str = "/payload/bin/insula-probe";
const FILES: &str = "/payload/bin/insula-files";
/// Where programs have the server's files, and where the base mounts the disk.
const SERVED: &str = "/tmp/served=file";
const MOUNTED: &str = "/tmp/mounted";
/// Leaves files of some kinds, synced.
const LEAVE: &str = "cd /tmp/served && mkdir -p lost+found && cp -a /etc/apt . && seq 1 60000 > numbers && \
                     ln -s numbers link && truncate -s 8M sparse && echo end >> sparse && sync numbers sparse";
/// Options of a server whose files are of threads on a core each.
const SHARDS: [&str; 2] = ["--shards", "2"];
/// Writes without end, beside these files, until its server dies.
const WRITE: &str =
    "cd /tmp/served && while seq 1 20000 > new && sync new && mv new old; do :; done";
/// Writes as much as takes the disk some time.
const WRITE_MUCH: &str = "head -c 8M /dev/urandom > /tmp/served/new && sync /tmp/served/new";
/// Lists what must be there, with modes, sizes and sums.
const LIST: &str = "find . -path ./lost+found -o -name old -o -name new -o -type f -printf '%p %M %s\\n' -o -printf '%p %M %l\\n' \
                    | grep -v '^\\. ' | sort && sha256sum numbers sparse apt/apt.conf.d/* | sort";

fn play(context: &Context) -> Result<(), Finding> {
    with_cleanup(|| {
        let before = Resources::now()?;
        run(&format!("mke2fs -q -F -t ext4 {}", spare::disk()?))?;
        is_refused_on_linux()?;
        insula(&RUN)?;
        let kills = context.count(5, 200).to_string();
        insula(&["exec", NODE, "--", PROBE, "pci", DISK, &kills])?;
        let left = serve_and_die(context)?;
        insula(&["rm", "--force", NODE])?;
        let disk = spare::disk()?;
        run(&format!("e2fsck -fn {disk}"))?;
        assert_equal("what Linux finds", &by_linux(&disk)?, &left)?;
        for _ in 0..context.count(1, 20) {
            is_powered_off(&left)?;
        }
        assert_unchanged(&before)
    })
}

/// A node that loses its power under writes leaves what was synced, and a journal that Linux replays. Its server has shards.
fn is_powered_off(left: &str) -> Result<(), Finding> {
    insula(&RUN)?;
    let mut server = start(&SHARDS)?;
    let mut writer = write()?;
    std::thread::sleep(Duration::from_millis(1000));
    insula(&["rm", "--force", NODE])?;
    server.wait()?;
    writer.wait()?;
    let disk = spare::disk()?;
    // Status 1: it has corrected something.
    run(&format!(
        "e2fsck -fp {disk} || [ $? = 1 ]; e2fsck -fn {disk}"
    ))?;
    assert_equal(
        "what a node without power has left",
        &by_linux(&disk)?.as_str(),
        &left,
    )
}

/// Files survive a server that is killed while it writes. Returns what is there at the end.
fn serve_and_die(context: &Context) -> Result<String, Finding> {
    let mut server = start(&[])?;
    is_taken()?;
    insula(&there(LEAVE))?;
    let listing = format!("cd /tmp/served && {LIST}");
    let left = insula(&there(&listing))?;
    interrupts()?;
    for _ in 0..context.count(2, 20) {
        let mut writer = write()?;
        std::thread::sleep(Duration::from_millis(1000));
        server.kill()?;
        server.wait()?;
        writer.kill()?;
        writer.wait()?;
        server = start(&[])?;
        let found = insula(&there(&listing))?;
        assert_equal("what a killed server has left", &found, &left)?;
    }
    kill(Pid::from_raw(server.id().cast_signed()), Signal::SIGTERM)?;
    let ended = server.wait()?;
    Finding::unless(ended.success(), || format!("the server ends with {ended}"))?;
    Ok(left)
}

/// Starts a server on the disk, with further options, and waits until it serves.
fn start(options: &[&str]) -> Result<Child, Finding> {
    let device = format!("nvme:{DISK}");
    let words = ["exec", NODE, "--", FILES, "ext4", "--device", &device];
    let words = [&words[..], options].concat();
    let mut server = command(&words).stdin(Stdio::null()).spawn()?;
    wait_for("the file server", || {
        if let Some(status) = server.try_wait()? {
            return Err(Finding::new(format!("the server has ended: {status}")));
        }
        let stat = try_insula(&there("stat -f /tmp/served"))?;
        Ok(stat.succeeded().is_ok().then_some(()))
    })?;
    Ok(server)
}

/// Starts what writes without end.
fn write() -> Result<Child, Finding> {
    let mut writer = command(&there(WRITE));
    let writer = writer.stdin(Stdio::null()).stdout(Stdio::null());
    Ok(writer.stderr(Stdio::null()).spawn()?)
}

/// The driver waits for its disk, which interrupts. A disk that is done before the driver stops looking need not: so
/// more is written until it does.
fn interrupts() -> Result<(), Finding> {
    wait_for("an interrupt of the disk", || {
        insula(&there(WRITE_MUCH))?;
        let servers = insula_json(&["servers", "ls", NODE, "--json"])?;
        let mut servers = servers.as_array().into_iter().flatten();
        let driver = servers.find(|server| server["name"] == DISK);
        let received = driver.and_then(|driver| driver["endpoint"]["interrupts"].as_u64());
        Ok((received > Some(0)).then_some(()))
    })
}

/// Another program gets neither the endpoint nor the disk.
fn is_taken() -> Result<(), Finding> {
    let device = format!("nvme:{DISK}");
    let words = [
        "exec", NODE, "--", FILES, "--name", "second", "ext4", "--device",
    ];
    let absent = "nvme:0000:07:00.0";
    try_insula(&[&words[..], &[&device]].concat())?.refused(1, &["another program drives"])?;
    try_insula(&[&words[..], &[absent]].concat())?.refused(1, &["the node has no function"])
}

/// Words that run a script on the node with the server's files.
fn there(script: &str) -> [&str; 8] {
    [
        "exec",
        "--mount",
        SERVED,
        NODE,
        "--",
        "/bin/bash",
        "-c",
        script,
    ]
}

/// Where there are no devices of a node the server says so.
fn is_refused_on_linux() -> Result<(), Finding> {
    let device = format!("nvme:{DISK}");
    let output = Command::new(FILES)
        .args(["ext4", "--device", &device])
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let is_clear = said.contains("lightweight kernel") && !output.status.success();
    Finding::unless(is_clear, || format!("it says: {said}"))
}

/// The same list, of the disk as Linux has it.
fn by_linux(disk: &str) -> Result<String, Finding> {
    std::fs::create_dir_all(MOUNTED)?;
    run(&format!("mount -o ro {disk} {MOUNTED}"))?;
    let listed = run(&format!("cd {MOUNTED} && {LIST}"));
    run(&format!("umount {MOUNTED}"))?;
    listed
}

fn run(script: &str) -> Result<String, Finding> {
    let answer = Command::new("/bin/bash").args(["-c", script]).output()?;
    Finding::unless(answer.status.success(), || format!("{script}: {answer:?}"))?;
    Ok(String::from_utf8_lossy(&answer.stdout).into_owned())
}
