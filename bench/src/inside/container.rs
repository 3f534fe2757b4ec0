//! A container of the base's kernel, compared with a node: namespaces of its own, limited to cores
//! and memory by a control group, as podman makes them.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

/// Tree of control groups (kernel: Documentation/admin-guide/cgroup-v2.rst).
const GROUPS: &str = "/sys/fs/cgroup";
/// Folder for the containers' output.
const OUTPUTS: &str = "/run";

/// A container that runs a shell script.
pub struct Container {
    process: Child,
    group: PathBuf,
    output: PathBuf,
}

impl Container {
    /// Starts it on that core, with at most so many bytes of memory. Its /mnt is a tmpfs of its
    /// own.
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
        // It joins the group before it runs the script.
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

    /// Lines that it has printed so far.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn lines(&self) -> io::Result<Vec<String>> {
        let text = fs::read_to_string(&self.output)?;
        Ok(text.lines().map(str::to_owned).collect())
    }
}

impl Drop for Container {
    /// Kills all of its processes.
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = fs::write(self.group.join("cgroup.kill"), "1");
        let _ = self.process.wait();
        // Those of its processes that are not this one's children cannot be waited for.
        for _ in 0..100 {
            if fs::remove_dir(&self.group).is_ok() {
                break;
            }
            sleep(Duration::from_millis(10));
        }
        let _ = fs::remove_file(&self.output);
    }
}
