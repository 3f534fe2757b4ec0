//! `insula upgrade`.

use std::time::Duration;

use insula_driver::name::Name;
use insula_exec::upgrade::{self, Planned, UpgradeEvent, UpgradeRequest};
use serde_json::json;

use super::{Context, Failure, output};
use crate::report::duration;

/// Its options.
#[derive(Clone, Copy, Debug)]
pub(super) struct Options {
    /// Only tell what would be done.
    pub(super) check: bool,
    /// Tell in JSON.
    pub(super) json: bool,
}

/// Upgrades a node to an image, or tells what that would do.
pub(super) fn upgrade(
    context: &Context,
    (node, image): (&Name, &Name),
    time_s: u32,
    options: Options,
) -> Result<(), Failure> {
    let driver = context.driver()?;
    let request = UpgradeRequest {
        node,
        image,
        stop_timeout: Duration::from_secs(time_s.into()),
        began_tsc: context.start_tsc,
    };
    if options.check {
        let planned = upgrade::check(&driver, &context.root, &request)?;
        return match options.json {
            true => output::line(&json!(planned).to_string()),
            false => output::print(&plan_text(&planned)),
        };
    }
    let observer = |event: &UpgradeEvent<'_>| {
        let line = match options.json {
            true => json!(event).to_string(),
            false => text(event),
        };
        // When the reader has gone, the work goes on.
        let _ = output::line(&line);
    };
    Ok(upgrade::upgrade(
        &driver,
        &context.root,
        &request,
        &observer,
    )?)
}

fn plan_text(planned: &Planned) -> String {
    let Planned {
        node,
        from,
        to,
        cpus,
        ..
    } = planned;
    let size = insula_base::units::Size(planned.memory_bytes);
    let mut text = format!("node {node}: {from} -> {to}, beside it on {cpus} cores with {size}\n");
    for one in &planned.containers {
        text += &format!("container {one}: to be moved\n");
    }
    for one in &planned.ended {
        text += &format!("container {one}: has ended, its log goes with the old node\n");
    }
    text
}

fn text(event: &UpgradeEvent<'_>) -> String {
    match event {
        UpgradeEvent::Earlier { node } => {
            format!("node {node}: left by an upgrade that was interrupted, goes first")
        }
        UpgradeEvent::Started { node, cpus } => format!("node {node}: started on {cpus}"),
        UpgradeEvent::Ready { node, after } => {
            format!("node {node}: ready after {}", in_words(*after))
        }
        UpgradeEvent::Moved {
            container,
            node,
            moved,
        } => format!(
            "container {container}: moved to '{node}', stood still for {}",
            in_words(moved.stood_still)
        ),
        UpgradeEvent::Named { node, old } => {
            format!("node {node}: is the new one, the old one is '{old}'")
        }
        UpgradeEvent::Failed { error } => format!("undoing it: {error}"),
        UpgradeEvent::Lost { container, node } => {
            format!("container {container}: has ended with the node '{node}'")
        }
        UpgradeEvent::Stopped { node, by_force } => match by_force {
            true => format!("node {node}: killed after the timeout"),
            false => format!("node {node}: powered off"),
        },
        UpgradeEvent::Removed { node } => format!("node {node}: removed"),
    }
}

fn in_words(time: Duration) -> String {
    duration(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use insula_exec::container::MovedContainer;

    use super::*;

    #[test]
    fn steps_as_text_and_as_json() {
        let (web, old, shop): (Name, Name, Name) = (
            "web".parse().unwrap(),
            "web.upgrade".parse().unwrap(),
            "shop".parse().unwrap(),
        );
        let moved = UpgradeEvent::Moved {
            container: &shop,
            node: &web,
            moved: MovedContainer {
                stood_still: Duration::from_millis(7),
                image_bytes: 4096,
                pre_copied_bytes: 0,
                held_packets: 2,
            },
        };
        assert_eq!(
            text(&moved),
            "container shop: moved to 'web', stood still for 7ms"
        );
        let wanted = json!({
            "event": "moved", "container": "shop", "node": "web",
            "stood_still_ns": 7_000_000, "image_bytes": 4096,
            "pre_copied_bytes": 0, "held_packets": 2,
        });
        assert_eq!(json!(moved), wanted);
        let named = UpgradeEvent::Named {
            node: &web,
            old: &old,
        };
        assert_eq!(
            json!(named),
            json!({ "event": "named", "node": "web", "old": "web.upgrade" })
        );
    }
}
