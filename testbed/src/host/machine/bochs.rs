//! Bochs: emulates processors of Intel with VMX, which QEMU's TCG lacks.
//!
//! It interprets each instruction, and all cores advance by the same number of them: time passes as where all of
//! them run at once, whatever the host has. GRUB boots the base's kernel from a CD. Root, payload and result are
//! disks, as of QEMU's machine; the root stays as it is. The kernel's log comes from the first serial port, the
//! task's output from the second.

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
use crate::host::ext4;
use crate::host::kernels::{self, Kernel};
use crate::host::payload::{self, Content, Payload};
use crate::host::project;
use crate::host::tool::{self, Tool, tail};

const INIT: &[u8] = include_bytes!("../../base/bochs-init");
/// Empty folders of the initial file system.
const FOLDERS: [&str; 6] = ["bin", "dev", "lib", "proc", "root", "sys"];
/// Modules needed to mount the disks, in modprobe's names.
const MODULES: [&str; 3] = ["ata_piix", "sd_mod", "ext4"];
/// Files of the disks: a copy of the root, the payload, and the result.
const ROOT: &str = "root";
const PAYLOAD: &str = "payload";
const RESULT: &str = "result";
/// File of what Bochs itself says.
const MESSAGES: &str = "messages";
/// Most memory that Bochs takes from the host for the machine's; the rest it keeps in a file.
const HOST_MEMORY_MIB_MAX: u64 = 2048;
/// Size of a cylinder, in bytes: 16 heads, 63 sectors.
const CYLINDER_BYTES: u64 = 16 * 63 * 512;
const RESULT_CYLINDERS: u64 = 128;
/// Parameters of the base's kernel: see `arguments`. The log is short, since the port is slow. Idle cores halt: a
/// core that waits by MWAIT has been seen to miss another core's write. Linux would warn of more cores of a package
/// in CPUID (leaf 4) than of its threads (leaf 1), in `parse_legacy` of arch/x86/kernel/cpu/topology_common.c. So
/// it uses no threads.
const PARAMETERS: &str = "console=ttyS0,115200 loglevel=5 panic=-1 tsc=reliable lpj=10000000 \
                          no_timer_check mitigations=off idle=halt clearcpuid=ht";
/// Debugger commands: go on.
const DEBUGGER: &str = "c\n";
/// How often it is looked whether the machine has ended.
const INTERVAL: Duration = Duration::from_millis(200);
/// Most bytes of a log that an error quotes.
const TAIL_BYTES: usize = 6000;

/// Bochs' configuration: a processor with VMX and x2APIC mode, one for whose extended states CPUID has
/// sizes (leaf 0xd) that add up, of which Linux would warn else. Its time passes by instructions. The display
/// is one for VNC, and does not wait for anybody: that of a terminal stops the machine when nobody reads it.
fn configuration(machine: &Machine) -> String {
    let (cpus, memory_mib) = (machine.cpus, machine.memory_mib);
    let host_mib = memory_mib.min(HOST_MEMORY_MIB_MAX);
    let ips = u64::from(machine.bochs_ticks_per_ms) * 1000;
    format!(
        "cpu: model=corei7_haswell_4770, count={cpus}, ips={ips}, reset_on_triple_fault=0\n\
         memory: guest={memory_mib}, host={host_mib}\n\
         romimage: file=$BXSHARE/BIOS-bochs-latest\n\
         vgaromimage: file=$BXSHARE/VGABIOS-lgpl-latest\n\
         display_library: rfb, options=\"timeout=0\"\n\
         com1: enabled=1, mode=file, dev=log\n\
         com2: enabled=1, mode=file, dev=output\n\
         ata0-master: type=cdrom, path=cd, status=inserted\n\
         ata0-slave: type=disk, mode=flat, path={ROOT}\n\
         ata1-master: type=disk, mode=flat, path={PAYLOAD}\n\
         ata1-slave: type=disk, mode=flat, path={RESULT}\n\
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
    let messages = read(MESSAGES);
    let messages = String::from_utf8_lossy(&messages);
    let messages = tail(&messages, TAIL_BYTES);
    if log.is_empty() {
        return Err(MachineError::Start(io::Error::other(messages.to_owned())));
    }
    let result = folder.path().join(RESULT);
    let files = payload::read_result(&result).map_err(at(&result))?;
    let ended = Ended {
        output,
        elapsed: started.elapsed(),
        // Quoted only if the task has left no status.
        abnormal_end: Some(format!(
            "Bochs ended, and its last messages are:\n{messages}"
        )),
    };
    Ok(Outcome::of_parts(folder, ended, &log, files))
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
    let (kernel, root) = {
        let _guard = project::lock().map_err(at(&runs))?;
        let kernel = kernels::fetch(machine.kernel, progress)?;
        (kernel, machine.root.image(progress)?)
    };
    let path = folder.path();
    let command = command(words, payload.load_module);
    payload.file("command", Content::Bytes(command.into_bytes()));
    let name = format!("boot/vmlinuz-{}", kernel.release);
    payload.file(&name, Content::File(kernel.vmlinuz()));
    let disk = |name| path.join(name);
    payload
        .write(&disk(PAYLOAD))
        .and_then(|()| in_whole_cylinders(&disk(PAYLOAD)))
        .map_err(at(&disk(PAYLOAD)))?;
    payload::empty_disk(&disk(RESULT), CYLINDER_BYTES * RESULT_CYLINDERS).map_err(at(path))?;
    ext4::copy(&root, &disk(ROOT))
        .and_then(|()| in_whole_cylinders(&disk(ROOT)))
        .map_err(at(&disk(ROOT)))?;
    let tree = disk("tree");
    write_tree(machine, &kernel, &tree).map_err(at(&tree))?;
    make_cd(&tree, &disk("cd")).map_err(MachineError::Start)?;
    fs::remove_dir_all(&tree).map_err(at(&tree))?;
    fs::write(disk("configuration"), configuration(machine)).map_err(at(path))?;
    fs::write(disk("debugger"), DEBUGGER).map_err(at(path))?;
    Ok(folder)
}

/// The task's command, for a shell, and before it that which loads the module.
fn command(words: &[String], load_module: bool) -> String {
    let before = match load_module {
        true => "insmod /payload/insula.ko\n",
        false => "",
    };
    format!("{before}cd /root\nexec {}\n", payload::shell_command(words))
}

/// Extends a disk: of one that ends within a cylinder Bochs shows whole cylinders only.
fn in_whole_cylinders(disk: &Path) -> io::Result<()> {
    let disk = fs::OpenOptions::new().write(true).open(disk)?;
    let size = disk.metadata()?.len();
    disk.set_len(size.next_multiple_of(CYLINDER_BYTES))
}

/// Writes the files of the CD.
fn write_tree(machine: &Machine, kernel: &Kernel, tree: &Path) -> io::Result<()> {
    let grub = tree.join("boot/grub");
    fs::create_dir_all(&grub)?;
    fs::copy(kernel.vmlinuz(), tree.join("boot/kernel"))?;
    fs::write(tree.join("boot/initrd"), initrd(kernel)?)?;
    let (append, ticks) = (&machine.append, machine.bochs_ticks_per_ms);
    let text = format!(
        "set timeout=0\nmenuentry base {{\n\tlinux /boot/kernel {PARAMETERS} tsc_early_khz={ticks} {append}\n\
         \tinitrd /boot/initrd\n}}\n"
    );
    fs::write(grub.join("grub.cfg"), text)
}

/// Initial file system: busybox, the disks' modules, and their list in the order of loading.
fn initrd(kernel: &Kernel) -> io::Result<Vec<u8>> {
    let mut archive = Initramfs::default();
    for folder in FOLDERS {
        archive = archive.directory(folder)?;
    }
    let busybox = busybox::program().map_err(io::Error::other)?;
    archive = archive.program("init", INIT)?;
    archive = archive.program("bin/busybox", &busybox)?;
    let archive = kernels::add_modules(archive, kernel, &MODULES);
    archive.map_err(io::Error::other)?.finish()
}

/// Makes a CD that boots by a PC's BIOS.
fn make_cd(tree: &Path, cd: &Path) -> io::Result<()> {
    let tool = Tool::new("grub-mkrescue").args(["-d", "/usr/lib/grub/i386-pc"]);
    let made = tool.arg("-o").arg(cd).arg(tree).run();
    made.map(drop)
        .map_err(|error| io::Error::other(format!("{error} (`scripts/bochs` installs it)")))
}

/// Starts Bochs, which wants a terminal, in a folder with its files. It is killed when this process
/// dies.
fn start(folder: &Path) -> io::Result<Child> {
    let messages = File::create(folder.join(MESSAGES))?;
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
    fn disk_ends_with_a_cylinder() {
        let disk = tempfile::NamedTempFile::new().unwrap();
        fs::write(disk.path(), [1; 1000]).unwrap();
        in_whole_cylinders(disk.path()).unwrap();
        let content = fs::read(disk.path()).unwrap();
        assert_eq!(content.len() as u64, CYLINDER_BYTES);
        assert_eq!(
            content[..1001].iter().filter(|&&byte| byte == 1).count(),
            1000
        );
    }

    #[test]
    fn configuration_has_a_line_for_each_thing() {
        let text = configuration(&Machine {
            cpus: 3,
            memory_mib: 1024,
            ..Machine::new(kernels::Flavour::V6_12)
        });
        assert!(
            text.lines()
                .all(|line| line.contains(':') && !line.starts_with(' '))
        );
        assert!(text.contains("count=3,") && text.contains("guest=1024, host=1024\n"));
    }
}
