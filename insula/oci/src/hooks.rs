//! The hooks of a container's engine that are called on the base: when its process is created, has been started, and when it was
//! deleted (OCI runtime specification, "POSIX-platform Hooks").
//!
//! The ordinary runtime calls this program in place of each list of them, at the same time. This calls them, and tells them of
//! the container what they expect: its own bundle; and that it was started when it was, in its node.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};

use insula_base::error::Error;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::own_words;
use super::start::wait_until_it_runs;
use super::state::{Record, State};

/// Lists of hooks that are called on the base. Others are the ordinary runtime's to call, in what stands for the container.
const LISTS: [&str; 4] = ["prestart", "createRuntime", STARTED, DELETED];
const STARTED: &str = "poststart";
const DELETED: &str = "poststop";

/// A hook.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct Hook {
    path: PathBuf,
    args: Option<Vec<String>>,
    env: Option<Vec<String>>,
    /// Seconds that it may take.
    timeout: Option<i64>,
}

/// All of an engine's, by their lists.
pub(super) type Hooks = BTreeMap<String, Option<Vec<Hook>>>;

/// Has the ordinary runtime call this program for the hooks of a container, and to forget it when it has deleted it, also by
/// itself.
pub(super) fn wrap(config: &mut Value, hooks: &Hooks, id: &str) -> Result<(), Error> {
    let own = |part: &[&str]| {
        let words = own_words(part)?;
        Ok::<_, Error>(json!({"path": words.first(), "args": words}))
    };
    if !config["hooks"].is_object() {
        config["hooks"] = json!({});
    }
    for list in LISTS {
        let is_empty = hooks
            .get(list)
            .and_then(Option::as_ref)
            .is_none_or(Vec::is_empty);
        if !is_empty {
            config["hooks"][list] = json!([own(&["hooks", list, id])?]);
        }
    }
    let forget = own(&["forget", id])?;
    match config["hooks"][DELETED].as_array_mut() {
        Some(others) => others.push(forget),
        None => config["hooks"][DELETED] = json!([forget]),
    }
    Ok(())
}

/// Calls a list of a container's hooks, one after the other. The container's state is this process's input.
///
/// # Errors
/// The first that fails; the container is not created then. Of a container that was started, or deleted, a hook that fails
/// is told, and the others are called.
pub fn call(list: &str, id: &str) -> Result<(), Error> {
    let Some(record) = State::of(id).record()? else {
        return Ok(());
    };
    let state = state_with(&record, serde_json::from_reader(io::stdin()).ok());
    if list == STARTED && !record.is_delegated() {
        wait_until_it_runs(&record);
    }
    for hook in hooks_of(&record, list) {
        let called = hook.call(&state).map_err(|why| failed(list, hook, &why));
        match called {
            Err(error) if [STARTED, DELETED].contains(&list) => eprintln!("insula-oci: {error}"),
            called => called?,
        }
    }
    Ok(())
}

/// The container's state as its engine knows it; what is none becomes one.
fn state_with(record: &Record, state: Option<Value>) -> Value {
    let mut state = state.filter(Value::is_object).unwrap_or_else(|| json!({}));
    state["bundle"] = json!(record.bundle);
    state
}

fn hooks_of<'a>(record: &'a Record, list: &str) -> impl Iterator<Item = &'a Hook> {
    record.hooks.get(list).into_iter().flatten().flatten()
}

fn failed(list: &str, hook: &Hook, why: &impl fmt::Display) -> Error {
    let what = format!("the {list} hook {} has failed: {why}", hook.path.display());
    Error::new(what).unchanged()
}

impl Hook {
    /// Calls it.
    fn call(&self, state: &Value) -> Result<(), String> {
        let mut command = Command::new(&self.path);
        let words = self.args.iter().flatten();
        let mut words = words.map(String::as_str);
        if let Some(name) = words.next() {
            command.arg0(name);
        }
        let variables = self.env.iter().flatten();
        let variables = variables.filter_map(|variable| variable.split_once('='));
        command.args(words).env_clear().envs(variables);
        let child = command.stdin(Stdio::piped()).spawn();
        let mut child = child.map_err(|error| error.to_string())?;
        if let Some(mut stdin) = child.stdin.take() {
            // One that does not read it ends before.
            let _ = stdin.write_all(state.to_string().as_bytes());
        }
        let ended = wait(&mut child, self.timeout).inspect_err(|_| {
            // Nobody else would end it.
            let _ = child.kill().and_then(|()| child.wait());
        });
        match ended.map_err(|error| error.to_string())? {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(status.to_string()),
            None => Err("it has taken too long".to_owned()),
        }
    }
}

/// Waits for the end of a process, which is killed when its seconds are over: none then.
fn wait(child: &mut Child, seconds: Option<i64>) -> io::Result<Option<ExitStatus>> {
    let Some(seconds) = seconds.filter(|seconds| *seconds > 0) else {
        return child.wait().map(Some);
    };
    let process = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    let timeout = Timespec {
        tv_sec: seconds,
        tv_nsec: 0,
    };
    let mut ended = [PollFd::new(&process, PollFlags::IN)];
    let has_ended = poll(&mut ended, Some(&timeout))? > 0;
    if !has_ended {
        child.kill()?;
    }
    let status = child.wait()?;
    Ok(has_ended.then_some(status))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn hook(script: &str, timeout: Option<i64>) -> Hook {
        Hook {
            path: "/bin/sh".into(),
            args: Some(["name", "-c", script].map(str::to_owned).to_vec()),
            env: Some(vec!["A=1".to_owned()]),
            timeout,
        }
    }

    #[test]
    fn hooks_get_state_arguments_and_environment() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("out");
        let script = format!("echo $0 $A $HOME >> {0}; cat >> {0}", out.display());
        hook(&script, Some(60)).call(&json!({"id": "web"})).unwrap();
        let written = fs::read_to_string(&out).unwrap();
        assert_eq!(written, "name 1\n{\"id\":\"web\"}");
    }

    #[test]
    fn hooks_fail_by_status_and_by_time() {
        let state = json!({});
        let status = hook("exit 3", None).call(&state).unwrap_err();
        assert!(status.contains('3'), "{status}");
        let late = hook("while :; do :; done", Some(1)).call(&state);
        assert!(late.unwrap_err().contains("too long"));
        let missing = Hook {
            path: "/no/such".into(),
            ..Hook::default()
        };
        assert!(missing.call(&state).is_err());
    }

    #[test]
    fn the_bundle_is_the_engines() {
        let record = Record {
            bundle: "/bundle".into(),
            ..crate::state::tests::record("web")
        };
        let state = state_with(&record, Some(json!({"id": "web", "bundle": "/other"})));
        assert_eq!(state, json!({"id": "web", "bundle": "/bundle"}));
        for none in [None, Some(json!([1])), Some(json!("text"))] {
            assert_eq!(state_with(&record, none), json!({"bundle": "/bundle"}));
        }
    }

    #[test]
    fn lists_are_called_by_this_program() {
        let hooks: Hooks = serde_json::from_value(json!({
            "prestart": [{"path": "/first"}, {"path": "/second"}],
            "poststart": null,
            "startContainer": [{"path": "/inside"}],
            "poststop": [{"path": "/last", "timeout": 3}],
        }))
        .unwrap();
        let mut config = json!({"hooks": {"startContainer": [{"path": "/inside"}]}});
        wrap(&mut config, &hooks, "web").unwrap();
        let words = |list: &str, at: usize| config["hooks"][list][at]["args"][2].clone();
        assert_eq!(words("prestart", 0), "hooks");
        assert_eq!(config["hooks"]["prestart"].as_array().unwrap().len(), 1);
        assert_eq!(config["hooks"]["poststart"], Value::Null);
        assert_eq!(config["hooks"]["startContainer"][0]["path"], "/inside");
        assert_eq!(
            (words("poststop", 0), words("poststop", 1)),
            (json!("hooks"), json!("forget"))
        );
        for mut config in [
            json!({}),
            json!({"hooks": null}),
            json!({"hooks": {"poststop": null}}),
        ] {
            wrap(&mut config, &Hooks::new(), "web").unwrap();
            assert_eq!(config["hooks"]["poststop"].as_array().unwrap().len(), 1);
        }
    }
}
