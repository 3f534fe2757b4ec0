//! Bochs: emulates processors of Intel with VMX, which QEMU's TCG lacks.
//!
//! It interprets each instruction, so its machine is small: no disk, no root file system. GRUB boots the
//! base's kernel from a CD, with an initial file system that holds the payload. The kernel's log comes
//! from the first serial port, the task's output from the second.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use insula_image::Initramfs;
use tempfile::TempDir;

use super::process::Ended;
use super::{FinalState, Machine, MachineError, Outcome, Task, at};
use crate::host::busybox;
use crate::host::kernels;
use crate::host::payload::{self, Content, Payload};
use crate::host::project;
use crate::host::tool::{self, Tool, tail};

const INIT: &[u8] = include_bytes!("../../base/bochs-init");
/// Empty folders of the initial file system.
const FOLDERS: [&str; 10] = [
    "bin", "boot", "dev", "payload", "proc", "result", "root", "run", "sys", "tmp",
];
/// Instructions in a second of the machine's time, and ticks of its time stamp counter: the kernel is told,
/// since CPUID tells it the frequency of a real processor, 35 times as high.
const TICKS_PER_MS: u32 = 100_000;
/// Parameters of the base's kernel: see `arguments`. The log is short, since the port is slow. Idle cores halt: a
/// core that waits by MWAIT has been seen to miss another core's write. Linux would warn of two things in its CPUID: of
/// more cores of a package (leaf 4) than of its threads (leaf 1), in `parse_legacy` of arch/x86/kernel/cpu/
/// topology_common.c, and of the size of what XSAVE saves (leaf 0xd), in `paranoid_xstate_size_valid` of arch/x86/kernel/
/// fpu/xstate.c. So it uses neither.
const PARAMETERS: &str = "console=ttyS0,115200 loglevel=5 panic=-1 tsc=reliable lpj=10000000 \
                          no_timer_check mitigations=off idle=halt clearcpuid=ht noxsave";
/// Debugger commands: go on.
const DEBUGGER: &str = "c\n";
/// How often it is looked whether the machine has ended.
const INTERVAL: Duration = Duration::from_millis(200);
/// Most bytes of a log that an error quotes.
const TAIL_BYTES: usize = 6000;

/// Bochs' configuration: a processor with VMX and x2APIC mode, whose time passes by instructions. The display
/// is one for VNC, and does not wait for anybody: that of a terminal stops the machine when nobody reads it.
fn configuration(cpus: u32, memory_mib: u64) -> String {
    let ips = u64::from(TICKS_PER_MS) * 1000;
    format!(
        "cpu: model=corei7_skylake_x, count={cpus}, ips={ips}, reset_on_triple_fault=0\n\
         memory: guest={memory_mib}, host={memory_mib}\n\
         romimage: file=$BXSHARE/BIOS-bochs-latest\n\
         vgaromimage: file=$BXSHARE/VGABIOS-lgpl-latest\n\
         display_library: rfb, options=\"timeout=0\"\n\
         com1: enabled=1, mode=file, dev=log\n\
         com2: enabled=1, mode=file, dev=output\n\
         ata0-master: type=cdrom, path=cd, status=inserted\n\
         boot: cdrom\n\
         sound: waveoutdrv=dummy, waveindrv=dummy, midioutdrv=dummy\n\
         clock: sync=none, time0=utc\n\
         log: bochs.log\n\
         panic: action=fatal\n\
         error: action=report\n\
         info: action=ignore\n"
    )
}

/// Boots the machine, runs its task and waits until it is off.
pub(super) fn run(
    machine: &Machine,
    task: &Task,
    payload: &Payload,
    show: bool,
    progress: &mut dyn FnMut(&str),
) -> Result<Outcome, MachineError> {
    let Task::Command(words) = task else {
        return Err(MachineError::Start(io::Error::other("Bochs has no shell")));
    };
    let folder = prepare(machine, words, payload.clone(), progress)?;
    let started = Instant::now();
    let end = start(folder.path())
        .and_then(|mut bochs| wait(&mut bochs, started, machine.limit))
        .map_err(MachineError::Start)?;
    let read = |name| fs::read(folder.path().join(name)).unwrap_or_default();
    let (output, log) = (read("output"), read("log"));
    if show {
        println!("{}", String::from_utf8_lossy(&output));
    }
    if !end {
        let path = folder.keep();
        let state = FinalState {
            output: tail(&String::from_utf8_lossy(&output), TAIL_BYTES).to_owned(),
            log_path: path.join("log"),
            log: tail(&String::from_utf8_lossy(&log), TAIL_BYTES).to_owned(),
            cores: "no state of its cores".to_owned(),
        };
        return Err(MachineError::Limit(machine.limit.as_secs(), state));
    }
    let (output, status) = split_status(output);
    let ended = Ended {
        output,
        elapsed: started.elapsed(),
        abnormal_end: None,
    };
    Ok(Outcome::of_parts(folder, ended, &log, status))
}

/// Splits the last line, the task's status, from its output; no status if there is no such line.
fn split_status(mut output: Vec<u8>) -> (Vec<u8>, Option<i32>) {
    let text = output.trim_ascii_end();
    let start = text.iter().rposition(|&byte| byte == b'\n');
    let start = start.map_or(0, |at| at + 1);
    let status = std::str::from_utf8(&text[start..]).ok();
    let status = status.and_then(|status| status.parse().ok());
    if status.is_some() {
        output.truncate(start);
    }
    (output, status)
}

/// Writes the CD and the configuration, into a folder of its own.
fn prepare(
    machine: &Machine,
    words: &[String],
    mut payload: Payload,
    progress: &mut dyn FnMut(&str),
) -> Result<TempDir, MachineError> {
    let runs = project::build().join("runs");
    fs::create_dir_all(&runs).map_err(at(&runs))?;
    let folder = tempfile::Builder::new().prefix("bochs-").tempdir_in(&runs);
    let folder = folder.map_err(at(&runs))?;
    let kernel = {
        let _guard = project::lock().map_err(at(&runs))?;
        kernels::fetch(machine.kernel, progress)?
    };
    let command = format!("exec {}\n", payload::shell_command(words));
    payload.file("command", Content::Bytes(command.into_bytes()));
    let name = format!("boot/vmlinuz-{}", kernel.release);
    payload.file(&name, Content::File(kernel.vmlinuz()));
    let path = folder.path();
    let tree = path.join("tree");
    write_tree(machine, &payload, &kernel.vmlinuz(), &tree).map_err(at(&tree))?;
    make_cd(&tree, &path.join("cd")).map_err(MachineError::Start)?;
    fs::remove_dir_all(&tree).map_err(at(&tree))?;
    let text = configuration(machine.cpus, machine.memory_mib);
    fs::write(path.join("configuration"), text).map_err(at(path))?;
    fs::write(path.join("debugger"), DEBUGGER).map_err(at(path))?;
    Ok(folder)
}

/// Writes the files of the CD.
fn write_tree(machine: &Machine, payload: &Payload, kernel: &Path, tree: &Path) -> io::Result<()> {
    let grub = tree.join("boot/grub");
    fs::create_dir_all(&grub)?;
    fs::copy(kernel, tree.join("boot/kernel"))?;
    fs::write(tree.join("boot/initrd"), initrd(payload)?)?;
    let append = &machine.append;
    let text = format!(
        "set timeout=0\nmenuentry base {{\n\tlinux /boot/kernel {PARAMETERS} tsc_early_khz={TICKS_PER_MS} {append}\n\
         \tinitrd /boot/initrd\n}}\n"
    );
    fs::write(grub.join("grub.cfg"), text)
}

fn initrd(payload: &Payload) -> io::Result<Vec<u8>> {
    let mut archive = Initramfs::default();
    for folder in FOLDERS {
        archive = archive.directory(folder)?;
    }
    let busybox = busybox::program().map_err(io::Error::other)?;
    archive = archive.program("init", INIT)?;
    archive = archive.program("bin/busybox", &busybox)?;
    payload.add_to(archive, "payload")?.finish()
}

/// Makes a CD that boots by a PC's BIOS.
fn make_cd(tree: &Path, cd: &Path) -> io::Result<()> {
    let tool = Tool::new("grub-mkrescue").args(["-d", "/usr/lib/grub/i386-pc"]);
    let made = tool.arg("-o").arg(cd).arg(tree).run();
    made.map(drop).map_err(|error| {
        io::Error::other(format!(
            "{error} (`make soak PART=confined_vmx` installs it)"
        ))
    })
}

/// Starts Bochs, which wants a terminal, in a folder with its files. It is killed when this process
/// dies.
fn start(folder: &Path) -> io::Result<Child> {
    let messages = File::create(folder.join("messages"))?;
    Command::new("setpriv")
        .env("PATH", tool::search_path())
        .args([
            "--pdeathsig",
            "KILL",
            "script",
            "--quiet",
            "--flush",
            "--return",
        ])
        .args(["--command", "exec bochs -q -f configuration -rc debugger"])
        .arg("terminal")
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(messages)
        .stderr(Stdio::null())
        .spawn()
}

/// Waits until the machine is off. Returns whether it is; else it is ended.
fn wait(bochs: &mut Child, started: Instant, limit: Duration) -> io::Result<bool> {
    while started.elapsed() < limit {
        if bochs.try_wait()?.is_some() {
            return Ok(true);
        }
        sleep(INTERVAL);
    }
    // Without its terminal Bochs ends, too.
    bochs.kill()?;
    bochs.wait()?;
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_is_the_last_line() {
        let split = |text: &str| split_status(text.as_bytes().to_vec());
        assert_eq!(split("a\nb\n0\n"), (b"a\nb\n".to_vec(), Some(0)));
        assert_eq!(split("1\r\n"), (Vec::new(), Some(1)));
        assert_eq!(split("a\nb"), (b"a\nb".to_vec(), None));
        assert_eq!(split(""), (Vec::new(), None));
    }

    #[test]
    fn configuration_has_a_line_for_each_thing() {
        let text = configuration(3, 1024);
        assert!(
            text.lines()
                .all(|line| line.contains(':') && !line.starts_with(' '))
        );
        assert!(text.contains("count=3,") && text.contains("guest=1024, host=1024\n"));
    }
}
