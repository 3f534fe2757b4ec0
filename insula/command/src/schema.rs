//! The published schema of what commands print with `--json` agrees with the types.

use std::path::Path;

use clap::CommandFactory;
use insula_compose::Report;
use insula_exec::upgrade::{Planned, UpgradeEvent};
use insula_machine::MachineView;
use insula_node::events::NodeEvent;
use insula_node::networks::NetworkView;
use insula_node::stats::NodeStats;
use insula_node::{LogRecord, NodeView, Started};
use insula_policy::Sample;
use insula_postmortem::{Dumped, KeptLog, StoredDump};
use insula_servers::ServerView;
use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use schemars::{JsonSchema, Schema};
use serde_json::{Value, json};

use super::cli::Cli;
use super::container::Listed;
use super::image::view::{ImageDetails, ImageView, InspectedImage};
use super::machine::Checked;
use super::node::Inspected;
use super::output::{FailureView, OUTPUT_VERSION};
use super::policy::Simulated;
use super::policy::runner::DecidedView;
use super::version::Versions;
use super::watch::line::WatchLine;

/// Environment variable: set to write it into the book instead of comparing it.
const UPDATE: &str = "UPDATE_BOOK";

/// What `insula` prints as JSON: each property is the schema of what the command of its name prints.
#[derive(JsonSchema)]
#[schemars(rename_all = "kebab-case")]
#[expect(dead_code, reason = "only its schema is made")]
struct Outputs {
    /// `insula ps --json`
    ps: Vec<Listed>,
    /// `insula inspect`
    inspect: Vec<Inspected>,
    /// `insula run --json`
    run: Started,
    /// `insula create --json`
    create: NodeView,
    /// `insula network create --json`
    #[schemars(rename = "network create")]
    network_create: NetworkView,
    /// `insula network ls --json`
    #[schemars(rename = "network ls")]
    network_ls: Vec<NetworkView>,
    /// `insula network inspect`
    #[schemars(rename = "network inspect")]
    network_inspect: Vec<NetworkView>,
    /// `insula update --json`
    update: NodeView,
    /// `insula stats --json`
    stats: Vec<NodeStats>,
    /// A line of `insula events --json`
    events: NodeEvent,
    /// A line of `insula logs --json`
    logs: LogRecord,
    /// `insula up --json`, also with `--dry-run`
    up: Report,
    /// `insula down --json`
    down: Report,
    /// A line of `insula upgrade --json`
    upgrade: UpgradeEvent<'static>,
    /// `insula upgrade --check --json`
    #[schemars(rename = "upgrade --check")]
    upgrade_check: Planned,
    /// A line of `insula watch --json`
    watch: WatchLine<'static>,
    /// `insula version --json`
    version: Versions,
    /// `insula image ls --json`
    #[schemars(rename = "image ls")]
    image_ls: Vec<ImageView>,
    /// `insula image inspect`
    #[schemars(rename = "image inspect")]
    image_inspect: Vec<InspectedImage>,
    /// `insula image add --json`
    #[schemars(rename = "image add")]
    image_add: ImageDetails,
    /// `insula image build --json`
    #[schemars(rename = "image build")]
    image_build: ImageDetails,
    /// `insula image load --json`
    #[schemars(rename = "image load")]
    image_load: ImageDetails,
    /// `insula machine check --json`
    #[schemars(rename = "machine check")]
    machine_check: Checked,
    /// `insula machine info --json`
    #[schemars(rename = "machine info")]
    machine_info: MachineView,
    /// `insula servers ls --json`
    #[schemars(rename = "servers ls")]
    servers_ls: Vec<ServerView>,
    /// `insula dump --json`
    dump: Dumped,
    /// `insula dump ls --json`
    #[schemars(rename = "dump ls")]
    dump_ls: Vec<StoredDump>,
    /// `insula postmortem --json`
    postmortem: Vec<KeptLog>,
    /// A line of `insula policy run --json`
    #[schemars(rename = "policy run")]
    policy_run: DecidedView<'static>,
    /// A line of `insula policy record`
    #[schemars(rename = "policy record")]
    policy_record: Sample,
    /// `insula policy simulate --json`
    #[schemars(rename = "policy simulate")]
    policy_simulate: Vec<Simulated>,
    /// Any of them that fails, in place of the result
    failure: FailureView,
}

/// What a file must not have together a record has: as null.
fn no_contradiction(schema: &mut Schema) {
    schema.remove("not");
}

fn schema() -> Value {
    let settings = SchemaSettings::draft2020_12()
        .for_serialize()
        .with_transform(RecursiveTransform(no_contradiction));
    let mut schema = settings.into_generator().into_root_schema_for::<Outputs>();
    schema.insert(
        "title".into(),
        json!(format!("insula: output as JSON, version {OUTPUT_VERSION}")),
    );
    // It is of many documents, each a property of its own, and none has all of them.
    schema.remove("required");
    let mut schema = schema.to_value();
    // What a file must have a record may lack: a node of `--kernel` is of no image.
    if let Some(spec) = schema.pointer_mut("/$defs/NodeSpec") {
        spec["required"] = json!([]);
    }
    schema
}

/// Names of the commands that have an option `--json`.
fn with_json(command: &clap::Command, path: &str) -> Vec<String> {
    let is_json = |argument: &clap::Arg| argument.get_long() == Some("json");
    let own = command
        .get_arguments()
        .any(is_json)
        .then(|| path.to_owned());
    let below = command.get_subcommands().flat_map(|one| {
        let path = format!("{path} {}", one.get_name());
        with_json(one, path.trim_start())
    });
    own.into_iter().chain(below).collect()
}

#[test]
fn each_command_with_json_has_a_schema() {
    let mut command = Cli::command();
    command.build();
    let schema = schema();
    let found = with_json(&command, "");
    assert!(found.len() > 20, "{found:?}");
    for command in found {
        assert!(schema["properties"].get(&command).is_some(), "{command}");
    }
}

#[test]
fn the_published_schema_matches_the_types() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/output.schema.json");
    let schema = serde_json::to_string_pretty(&schema()).unwrap() + "\n";
    if std::env::var_os(UPDATE).is_some() {
        return std::fs::write(path, schema).unwrap();
    }
    let published = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        published, schema,
        "`{UPDATE}=1 cargo test -p insula` writes it"
    );
}
