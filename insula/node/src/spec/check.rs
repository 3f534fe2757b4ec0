//! What is wrong with a spec that could be parsed. The texts name options of `insula run`; a file's keys
//! are called the same.

use std::fmt::Display;
use std::os::unix::ffi::OsStrExt;

use insula_abi::NODE_CPUS_MAX;
use insula_base::error::Error;
use insula_image::BUILT_IN;

use super::NodeSpec;
use crate::attachment::{VOLUMES_MAX, VolumeSpec};
use crate::cores::CoreRequest;
use crate::isolation::Isolation;
use crate::shared_core::{CORE_SHARE_MAX, ShareBy};

/// Longest time that the base may look for packets of a node: a core of it does nothing else meanwhile.
const NETWORK_POLL_MAX_US: u32 = 1_000_000;

impl NodeSpec {
    /// Checks the spec by itself.
    ///
    /// # Errors
    /// All that is wrong, at least one error, each about an option; nothing was touched.
    pub fn check(&self) -> Result<(), Vec<Error>> {
        let mut problems = Problems::default();
        problems.cores(self);
        problems.shared_core(self);
        problems.ports(self);
        problems.memory(self);
        problems.root(self);
        problems.volumes(self);
        problems.host_name(self);
        problems.network_poll(self);
        problems.program(self);
        problems.ready(self);
        problems.watch(self);
        match problems.0.is_empty() {
            true => Ok(()),
            false => Err(problems.0),
        }
    }
}

#[derive(Default)]
struct Problems(Vec<Error>);

impl Problems {
    fn add(&mut self, key: &'static str, message: impl Display, hint: impl Display) {
        let error = Error::new(message.to_string()).untouched();
        self.0.push(error.about(key).hint(hint.to_string()));
    }

    fn cores(&mut self, spec: &NodeSpec) {
        if spec.cpus.is_some() && spec.cpu_list.is_some() {
            let message = "--cpus and --cpu-list are mutually exclusive";
            self.add("cpus", message, "remove one of them");
        }
        let (key, count) = match spec.cores() {
            CoreRequest::List(list) => ("cpu_list", list.0.len()),
            CoreRequest::Count(count) => ("cpus", count as usize),
        };
        self.count(key, count);
        let Some(most) = spec.max_cpus else {
            return;
        };
        self.count("max_cpus", most as usize);
        if (most as usize) < count {
            let message = format!("the node starts with {count} cores, more than its maximum");
            let hint = "include the cores that it starts with, or remove --max-cpus";
            self.add("max_cpus", message, hint);
        }
    }

    fn shared_core(&mut self, spec: &NodeSpec) {
        if spec.share_core.is_none() && spec.share_by != ShareBy::default() {
            let hint = "give --share-core, or remove --share-by";
            self.add("share_by", "the node shares no core", hint);
        }
        let Some(share) = spec.core_share else {
            return self.shared_alone(spec);
        };
        if spec.share_core.is_none() {
            let hint = "give --share-core, or remove --core-share";
            self.add("core_share", "the node shares no core", hint);
        } else if !(1..=CORE_SHARE_MAX).contains(&share) {
            let message = format!("a node cannot have {share} % of a core that it shares");
            self.add(
                "core_share",
                message,
                format!("ask for 1 to {CORE_SHARE_MAX}"),
            );
        }
        self.shared_alone(spec);
    }

    /// A node that shares a core has that one alone, and no monitor.
    fn shared_alone(&mut self, spec: &NodeSpec) {
        if spec.share_core.is_none() {
            return;
        }
        if spec.cpus.is_some() || spec.cpu_list.is_some() || spec.max_cpus.is_some() {
            let message = "a node that shares a core has no others";
            let hint = "remove --cpus, --cpu-list and --max-cpus, or --share-core";
            self.add("share_core", message, hint);
        }
        if spec.isolation != Isolation::Direct {
            let message = "a node that shares a core cannot be confined yet";
            self.add("share_core", message, "remove --isolation, or --share-core");
        }
    }

    fn network_poll(&mut self, spec: &NodeSpec) {
        let Some(poll_us) = spec.network_poll_us else {
            return;
        };
        if spec.networking().is_none() {
            let hint = "give --network, or remove --network-poll-us";
            self.add("network_poll_us", "the node has no network", hint);
        } else if poll_us > NETWORK_POLL_MAX_US {
            let message = format!("the base cannot look for packets for {poll_us} microseconds");
            let hint = format!("ask for at most {NETWORK_POLL_MAX_US}");
            self.add("network_poll_us", message, hint);
        }
    }

    fn ports(&mut self, spec: &NodeSpec) {
        if !spec.allow_ioperm {
            return;
        }
        let (message, hint) = if !is_built_in(spec) {
            let message = "only programs of a lightweight kernel can be allowed to use ports";
            (
                message,
                "start it with `--image lwk`, or remove --allow-ioperm",
            )
        } else if spec.isolation != Isolation::Direct {
            let message = "programs of a confined node use no ports";
            (message, "remove --isolation, or --allow-ioperm")
        } else {
            return;
        };
        self.add("allow_ioperm", message, hint);
    }

    fn count(&mut self, key: &'static str, count: usize) {
        if !(1..=NODE_CPUS_MAX).contains(&count) {
            let message = format!("a node cannot have {count} cores");
            self.add(key, message, format!("ask for 1 to {NODE_CPUS_MAX}"));
        }
    }

    fn memory(&mut self, spec: &NodeSpec) {
        if spec.memory.is_empty() {
            let hint = "give an amount, such as \"512M\", or remove --memory";
            self.add("memory", "the node has no memory", hint);
        }
    }

    fn root(&mut self, spec: &NodeSpec) {
        if spec.overlay && spec.rootfs.is_none() {
            let hint = "give --rootfs, or remove --overlay";
            self.add("overlay", "an overlay needs a root file system", hint);
        }
    }

    fn volumes(&mut self, spec: &NodeSpec) {
        let volumes = &spec.volume;
        if volumes.len() > VOLUMES_MAX {
            let message = format!("a node cannot have {} volumes", volumes.len());
            self.add("volume", message, format!("give at most {VOLUMES_MAX}"));
        }
        let is_same = |(at, one): &(usize, &VolumeSpec)| {
            let before = &volumes[..*at];
            before
                .iter()
                .any(|other| other.mount_point == one.mount_point)
        };
        if let Some((_, one)) = volumes.iter().enumerate().find(is_same) {
            let message = format!("two volumes are to be at {}", one.mount_point.display());
            self.add("volume", message, "give one of them another mount point");
        }
        if !volumes.is_empty() && is_built_in(spec) {
            let message = "programs of the lightweight kernel have this system's files anyway";
            self.add("volume", message, "remove --volume");
        }
    }

    fn host_name(&mut self, spec: &NodeSpec) {
        if spec.hostname.is_some() && is_built_in(spec) {
            let message = "programs of the lightweight kernel have this system's host name";
            self.add("hostname", message, "remove --hostname");
        }
    }

    fn program(&mut self, spec: &NodeSpec) {
        if spec.program.is_none() {
            return self.without_program(spec);
        }
        if spec.words().next().is_none_or(|word| word.is_empty()) {
            let hint = "give one, as program = [\"/usr/sbin/nginx\", \"-g\", \"daemon off;\"]";
            self.add("program", "the list is empty", hint);
        } else if spec.words().any(|word| word.as_bytes().contains(&0)) {
            let message = "a program's arguments cannot contain NUL";
            self.add("program", message, "remove it");
        } else if is_built_in(spec) {
            let message = "a node of the lightweight kernel starts without a program";
            let hint = "remove it, and run programs there with `insula exec`";
            self.add("program", message, hint);
        }
    }

    fn watch(&mut self, spec: &NodeSpec) {
        let key = match spec.watch.is_empty() {
            true => "watch_rules",
            false => "watch",
        };
        let is_watched = !spec.watch.is_empty() || spec.watch_rules.is_some();
        if is_watched && is_built_in(spec) {
            let message = "a node of the lightweight kernel cannot be watched";
            self.add(key, message, "remove it: only kernels of Linux can be");
        }
    }

    fn without_program(&mut self, spec: &NodeSpec) {
        let has = [
            ("env", !spec.env.is_empty()),
            ("workdir", spec.workdir.is_some()),
            ("interactive", spec.interactive),
            ("tty", spec.tty),
        ];
        for (key, _) in has.iter().filter(|(_, has)| *has) {
            let message = format!("--{key} is of a program, and the node has none");
            self.add(key, message, "give a program, or remove it");
        }
    }

    fn ready(&mut self, spec: &NodeSpec) {
        let is_line = |text: &str| !text.is_empty() && !text.contains('\n');
        if spec
            .ready
            .as_ref()
            .is_some_and(|ready| !is_line(&ready.log))
        {
            let message = "not a text within one line of a log";
            let hint = "give a part of the log line that marks the node as ready";
            self.add("ready.log", message, hint);
        }
    }
}

/// Whether its image is that of the lightweight kernel.
fn is_built_in(spec: &NodeSpec) -> bool {
    let image = spec.image.as_ref();
    image.is_some_and(|image| image.as_str() == BUILT_IN)
}
