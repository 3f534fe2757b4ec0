//! `insula ps`.

mod filter;
mod template;

use std::collections::BTreeSet;

use insula_base::units::Size;
use insula_exec::container::ContainerView;
use insula_node::{Handle, NodeView};

use super::cli::Ps;
use super::node::observe_all;
use super::{Context, Failure, container, create, output};
use crate::report::{Align, Table, duration};

pub(super) use filter::{Filter, Filters};

pub(super) fn ps(context: &Context, options: &Ps) -> Result<(), Failure> {
    let driver = context.driver()?;
    let handles = observe_all(&driver)?;
    let filters = Filters(&options.filter);
    let mut containers = container::list(context, &handles)?;
    containers.retain(|one| filters.have_container(one));
    let all = options.all || filters.are_of_state();
    let listed = handles.iter().filter(|handle| all || is_listed(handle));
    let mut views: Vec<_> = listed.map(Handle::view).collect();
    if all {
        views.extend(create::views(&driver, context)?);
    }
    if options.json {
        // A container is shown with its node.
        views.retain(|view| filters.have_node(view) || has_one_of(view, &containers));
        return output::json(&container::with_nodes(views, &containers));
    }
    views.retain(|view| filters.have_node(view));
    if options.quiet {
        return output::print(&names(&views, &containers));
    }
    if let Some(format) = &options.format {
        return output::print(&template::rendered(format, &views, &containers)?);
    }
    if handles.iter().any(Handle::is_unsupervised) {
        output::note("`insula supervise` starts a new supervisor for unsupervised nodes");
    }
    output::print(&table(&views).to_string())?;
    container::print(&containers)
}

/// Whether a node is listed unless all are asked for: it is there, or needs to be looked at.
fn is_listed(handle: &Handle) -> bool {
    let has_failed = handle.is_crashed() || handle.has_violated();
    has_failed || handle.is_restarting() || !handle.is_stopped()
}

fn has_one_of(node: &NodeView, containers: &[ContainerView]) -> bool {
    containers
        .iter()
        .any(|one| one.record.node.as_str() == node.name)
}

/// A line for each.
fn names(views: &[NodeView], containers: &[ContainerView]) -> String {
    let nodes = views.iter().map(|view| view.name.as_str());
    let containers = containers.iter().map(|one| one.record.name.as_str());
    let all = nodes.chain(containers);
    all.map(|name| format!("{name}\n")).collect()
}

fn table(views: &[NodeView]) -> Table {
    let mut table = Table::new(&[
        ("NAME", Align::Left),
        ("STATE", Align::Left),
        ("CORES", Align::Left),
        ("MEMORY", Align::Right),
        ("IMAGE", Align::Left),
        ("KERNEL", Align::Left),
        ("RAN", Align::Right),
    ]);
    for view in views {
        let or_dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
        table.row([
            view.name.clone(),
            state_text(view),
            cores_text(view),
            memory_text(view),
            or_dash(&view.image),
            or_dash(&view.release),
            duration(view.ran_ns),
        ]);
    }
    table
}

/// A node's cores; `-` before its first start.
fn cores_text(view: &NodeView) -> String {
    match view.cpus.0.is_empty() {
        true => "-".to_owned(),
        false => view.cpus.to_string(),
    }
}

/// The size of a node's memory; of a copy's also what it does not share.
fn memory_text(view: &NodeView) -> String {
    if view.memory_bytes == 0 {
        return "-".to_owned();
    }
    let (all, own) = (Size(view.memory_bytes), Size(view.own_memory_bytes));
    match own == all {
        true => all.to_string(),
        false => format!("{all}, {own} own"),
    }
}

/// A node's state, with its reason and flags.
pub(super) fn state_text(view: &NodeView) -> String {
    let running = view.state == "running";
    let violation = view.violation.as_ref();
    let violation = violation.map(|what| format!("violation: {what}"));
    let reason = violation.as_deref().or(view.reason);
    let mut more: Vec<_> = reason.into_iter().collect();
    more.extend(view.unresponsive.then_some("unresponsive"));
    more.extend(view.restarting.then_some("restarting"));
    more.extend((!view.failed_devices.is_empty()).then_some("device failed"));
    let kinds = view.findings.iter().map(|finding| finding.kind.name());
    more.extend(BTreeSet::from_iter(kinds));
    more.extend((running && !view.supervised).then_some("unsupervised"));
    match more.as_slice() {
        [] => view.state.to_owned(),
        more => format!("{} ({})", view.state, more.join(", ")),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use insula_base::units::CpuList;
    use insula_exec::container::ContainerRecord;
    use insula_node::NodeFinding;
    use insula_node::attachment::DeviceFailure;
    use insula_rules::Kind;

    use super::*;

    pub(in crate::ps) fn view(name: &str, reason: Option<&'static str>) -> NodeView {
        NodeView {
            name: name.into(),
            id: 1,
            state: if reason.is_some() {
                "stopped"
            } else {
                "running"
            },
            reason,
            violation: None,
            supervised: reason.is_none(),
            unresponsive: false,
            restarting: false,
            failed_devices: Vec::new(),
            watched: false,
            findings: Vec::new(),
            starts: 1,
            cpus: CpuList(vec![2, 3]),
            apic_ids: vec![2, 3],
            memory_bytes: (512 << 20) + 0x9000,
            own_memory_bytes: (512 << 20) + 0x9000,
            address: None,
            labels: vec!["tier=front".parse().unwrap_or_else(|never| match never {})],
            image: reason.is_none().then(|| "debian".into()),
            release: Some("6.1.0-1-amd64".into()),
            started_unix_s: Some(5),
            ended_unix_s: None,
            ran_ns: 61_000_000_000,
        }
    }

    pub(in crate::ps) fn container(name: &str, node: &str) -> ContainerView {
        ContainerView {
            record: ContainerRecord {
                lwk_node: None,
                rootfs: None,
                name: name.parse().unwrap(),
                node: node.parse().unwrap(),
                node_id: None,
                moving_to: None,
                address: None,
                publish: vec!["8080:80".parse().unwrap()],
                command: vec!["/bin/server".into(), "-x".into()],
                created_unix_s: 0,
            },
            state: "running",
            exit_code: None,
            pid: Some(7),
        }
    }

    #[test]
    fn names_of_nodes_and_containers() {
        let (views, containers) = ([view("web", None)], [container("shop", "web")]);
        assert_eq!(names(&views, &containers), "web\nshop\n");
    }

    #[test]
    fn memory_that_is_shared_is_told() {
        let mut view = view("web", None);
        view.memory_bytes = 512 << 20;
        view.own_memory_bytes = 300 << 10;
        assert_eq!(memory_text(&view), "512M, 300K own");
        view.own_memory_bytes = view.memory_bytes;
        assert_eq!(memory_text(&view), "512M");
    }

    #[test]
    fn nodes_as_a_table() {
        let unsupervised = NodeView {
            supervised: false,
            unresponsive: true,
            ..view("alone", None)
        };
        let restarting = NodeView {
            restarting: true,
            ..view("restarting", Some("crashed"))
        };
        let degraded = NodeView {
            failed_devices: vec![DeviceFailure {
                device: "disk /srv/disk".into(),
                error: "there is no file".into(),
            }],
            ..view("degraded", None)
        };
        let created = NodeView {
            name: "later".into(),
            state: "created",
            image: Some("debian".into()),
            ..NodeView::default()
        };
        let violating = NodeView {
            violation: Some("port 0xcf9".into()),
            ..view("tenant", Some("violation"))
        };
        let oops = |subject: &str| NodeFinding {
            kind: Kind::Oops,
            subject: subject.into(),
            detail: "why".into(),
        };
        let ill = NodeView {
            watched: true,
            findings: vec![oops("a"), oops("b")],
            ..view("ill", None)
        };
        let (web, crashed) = (view("web", None), view("calm-crete", Some("crashed")));
        let views = [
            web,
            crashed,
            unsupervised,
            restarting,
            degraded,
            violating,
            ill,
            created,
        ];
        insta::assert_snapshot!(table(&views));
    }

    #[test]
    fn nodes_as_json() {
        insta::assert_snapshot!(serde_json::to_string_pretty(&view("web", None)).unwrap());
    }
}
