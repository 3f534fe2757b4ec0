//! A container in the form that its runtime gets: a bundle (OCI runtime specification), which
//! podman and others make from a user's options.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use testbed::base::Finding;

use super::{FOLDER, run};

/// Its folder, in memory.
const PLACE: &str = "/run/bundle";

/// A bundle whose root is the folder that nodes' images are built with.
pub struct Bundle(());

impl Bundle {
    /// A bundle of a program without a terminal, with crun's defaults: namespaces of its own, also
    /// a network namespace without devices.
    ///
    /// # Errors
    /// When crun does not make it.
    pub fn make(words: &[&str]) -> Result<Self, Finding> {
        fs::create_dir_all(PLACE)?;
        run(Command::new("crun").arg("spec").current_dir(PLACE))?;
        let path = Path::new(PLACE).join("config.json");
        let mut settings: Value = serde_json::from_slice(&fs::read(&path)?)?;
        settings["process"]["terminal"] = json!(false);
        settings["process"]["args"] = json!(words);
        settings["root"] = json!({"path": FOLDER, "readonly": false});
        fs::write(&path, serde_json::to_vec(&settings)?)?;
        Ok(Self(()))
    }

    /// Command that runs it to its end.
    #[must_use]
    pub fn run(&self) -> Command {
        let mut command = Command::new("crun");
        command.args(["run", "--bundle", PLACE, "bundle"]);
        command
    }
}
