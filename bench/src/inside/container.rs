//! A container of the base's kernel, which a node is measured beside: name spaces of its own, held
//! to cores and memory by a control group, as podman makes them.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

/// The tree of control groups (kernel: Documentation/admin-guide/cgroup-v2.rst).
const GROUPS: &str = "/sys/fs/cgroup";
/// Where what it prints goes.
const OUTPUTS: &str = "/run";

/// A container that runs a shell's script.
pub struct Container {
    process: Child,
    group: PathBuf,
    output: PathBuf,
}

impl Container {
    /// Starts it on that core, with so many bytes of memory at most. In it /mnt is a file system in
    /// memory of its own.
    ///
    /// # Errors
    /// When there are no control groups, or it does not start.
    pub fn start(name: &str, core: usize, memory_bytes: u64, script: &str) -> io::Result<Self> {
        let group = PathBuf::from(GROUPS).join(name);
        let output = PathBuf::from(OUTPUTS).join(format!("{name}.output"));
        fs::write(
            format!("{GROUPS}/cgroup.subtree_control"),
            "+cpuset +memory",
        )?;
        fs::create_dir(&group)?;
        fs::write(group.join("cpuset.cpus"), core.to_string())?;
        fs::write(group.join("memory.max"), memory_bytes.to_string())?;
        let members = group.join("cgroup.procs");
        let inside = format!("mount -t tmpfs memory /mnt\n{script}");
        // It joins before it does anything else.
        let join = "echo $$ > \"$1\"; shift; exec \"$@\"";
        let spaces = ["unshare", "--mount", "--pid", "--fork", "--net", "--ipc"];
        let process = Command::new("busybox")
            .args(["sh", "-c", join, "join"])
            .arg(&members)
            .args(spaces)
            .args(["busybox", "sh", "-c", &inside])
            .stdin(Stdio::null())
            .stdout(File::create(&output)?)
            .spawn()?;
        Ok(Self {
            process,
            group,
            output,
        })
    }

    /// The lines that it has printed so far.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn lines(&self) -> io::Result<Vec<String>> {
        let text = fs::read_to_string(&self.output)?;
        Ok(text.lines().map(str::to_owned).collect())
    }
}

impl Drop for Container {
    /// Ends all that is in it.
    fn drop(&mut self) {
        // It may have ended by itself, which is as good.
        let _ = fs::write(self.group.join("cgroup.kill"), "1");
        let _ = self.process.wait();
        // Those of its processes that were not this one's children are not waited for.
        for _ in 0..100 {
            if fs::remove_dir(&self.group).is_ok() {
                break;
            }
            sleep(Duration::from_millis(10));
        }
        let _ = fs::remove_file(&self.output);
    }
}
