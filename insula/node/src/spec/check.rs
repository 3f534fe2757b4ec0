//! What is wrong with a spec that could be parsed. The texts name options of `insula run`; a file's keys
//! are called the same.

use std::fmt::Display;
use std::os::unix::ffi::OsStrExt;

use insula_abi::NODE_CPUS_MAX;
use insula_base::error::Error;
use insula_image::BUILT_IN;

use super::NodeSpec;
use crate::cores::CoreRequest;

impl NodeSpec {
    /// Checks the spec by itself.
    ///
    /// # Errors
    /// All that is wrong, at least one error, each about an option; nothing was touched.
    pub fn check(&self) -> Result<(), Vec<Error>> {
        let mut problems = Problems::default();
        problems.cores(self);
        problems.memory(self);
        problems.root(self);
        problems.program(self);
        problems.ready(self);
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

    fn program(&mut self, spec: &NodeSpec) {
        let is_built_in = spec
            .image
            .as_ref()
            .is_some_and(|image| image.as_str() == BUILT_IN);
        if spec.program.is_none() {
            return;
        }
        if spec.words().next().is_none_or(|word| word.is_empty()) {
            let hint = "give one, as program = [\"/usr/sbin/nginx\", \"-g\", \"daemon off;\"]";
            self.add("program", "the list is empty", hint);
        } else if spec.words().any(|word| word.as_bytes().contains(&0)) {
            let message = "a program's arguments cannot contain NUL";
            self.add("program", message, "remove it");
        } else if is_built_in {
            let message = "a node of the lightweight kernel starts without a program";
            let hint = "remove it, and run programs there with `insula exec`";
            self.add("program", message, hint);
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
