//! `insula machine`.

use std::process::ExitCode;

use insula_base::units::{CpuList, Size};
use insula_machine::{self as machine, Finding, MachineView, Verdict};
use insula_node::cores::CoreRequest;
use serde::Serialize;

use super::cli::{Machine, Reserve};
use super::{Context, Failure, output};
use crate::report::{Align, Table};

pub(super) fn machine(context: &Context, command: Machine) -> Result<ExitCode, Failure> {
    match command {
        Machine::Check { json } => return check(context, json),
        Machine::Info { json } => info(context, json)?,
        Machine::Reserve(options) => reserve(context, options)?,
        Machine::Release => machine::release(&context.driver()?)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// What `machine check` has found.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Checked {
    /// The worst of all verdicts.
    verdict: Verdict,
    /// All of them.
    findings: Vec<Finding>,
}

fn check(context: &Context, json: bool) -> Result<ExitCode, Failure> {
    let findings = machine::check(&context.root);
    let worst = findings
        .iter()
        .map(|finding| finding.verdict)
        .max()
        .unwrap_or(Verdict::Ok);
    if json {
        output::json(&Checked {
            verdict: worst,
            findings,
        })?;
    } else {
        output::print(&check_text(&findings, worst))?;
    }
    Ok(if worst == Verdict::Bad {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

fn check_text(findings: &[Finding], worst: Verdict) -> String {
    let mut table = Table::new(&[
        ("SUBJECT", Align::Left),
        ("VERDICT", Align::Left),
        ("FOUND", Align::Left),
    ]);
    for Finding {
        subject,
        verdict,
        found,
        ..
    } in findings
    {
        table.row([
            (*subject).to_owned(),
            verdict.word().to_owned(),
            found.clone(),
        ]);
    }
    let mut text = format!("{table}\n");
    for Finding {
        subject,
        verdict,
        hint,
        ..
    } in findings
    {
        if let Some(hint) = hint {
            text += &format!("{subject} ({}): {hint}\n\n", verdict.word());
        }
    }
    text += match worst {
        Verdict::Ok => "This machine can host nodes.\n",
        Verdict::Limited => {
            "This machine can host nodes; something that they can have is missing.\n"
        }
        Verdict::Untested => {
            "This machine can probably host nodes; not everything found here is \
                              tested.\n"
        }
        Verdict::Bad => "This machine cannot host nodes in its present state.\n",
    };
    text
}

fn info(context: &Context, json: bool) -> Result<(), Failure> {
    let view = machine::info(&context.driver()?, &context.root)?;
    if json {
        output::json(&view)
    } else {
        output::print(&info_text(&view))
    }
}

fn info_text(view: &MachineView) -> String {
    let mut cores = Table::new(&[
        ("CORE", Align::Right),
        ("APIC", Align::Right),
        ("NUMA", Align::Right),
        ("OWNER", Align::Left),
        ("NODE", Align::Left),
    ]);
    for core in &view.cores {
        let dash = || "-".to_owned();
        let offline = core.owner == "base" && !core.online;
        cores.row([
            core.cpu.to_string(),
            core.apic_id.to_string(),
            core.numa_node.map_or_else(dash, |node| node.to_string()),
            if offline {
                "base (offline)"
            } else {
                core.owner
            }
            .to_owned(),
            core.node.clone().unwrap_or_else(dash),
        ]);
    }
    let (memory, devices) = (memory_text(view), devices_text(view));
    format!("{cores}\n{memory}{devices}")
}

/// A table of the devices that nodes have or could have; empty if there are none.
fn devices_text(view: &MachineView) -> String {
    let mut table = Table::new(&[
        ("DEVICE", Align::Left),
        ("KIND", Align::Left),
        ("ID", Align::Left),
        ("OWNER", Align::Left),
        ("NODE", Align::Left),
    ]);
    let dash = || "-".to_owned();
    let mut fit = view
        .devices
        .iter()
        .filter(|device| device.obstacle.is_none())
        .peekable();
    if fit.peek().is_none() {
        return String::new();
    }
    for device in fit {
        let driver = device.driver.as_ref();
        let base = driver.map_or("base".to_owned(), |driver| format!("base ({driver})"));
        table.row([
            device.address.to_string(),
            device.kind.to_owned(),
            device.id.clone(),
            if device.node.is_some() {
                "node".to_owned()
            } else {
                base
            },
            device.node.clone().unwrap_or_else(dash),
        ]);
    }
    format!("\n{table}")
}

fn memory_text(view: &MachineView) -> String {
    let mut table = Table::new(&[
        ("MEMORY", Align::Left),
        ("TOTAL", Align::Right),
        ("FREE", Align::Right),
    ]);
    let memory = &view.memory;
    let size = |bytes: u64| Size(bytes).to_string();
    let maybe = |bytes: Option<u64>| bytes.map_or("-".to_owned(), size);
    let mut row = |what: &str, total: String, free: String| table.row([what.into(), total, free]);
    row(
        "base",
        maybe(memory.base_total_bytes),
        maybe(memory.base_available_bytes),
    );
    for node in &memory.numa_nodes {
        let what = format!("base, NUMA node {}", node.numa_node);
        row(&what, size(node.total_bytes), size(node.free_bytes));
    }
    row(
        "pool",
        size(memory.pool_total_bytes),
        size(memory.pool_free_bytes),
    );
    row("nodes and images", size(memory.allocated_bytes), "-".into());
    if memory.quarantined_bytes > 0 {
        row("quarantined", size(memory.quarantined_bytes), "-".into());
    }
    row(
        "below 1 MiB",
        size(memory.low_total_bytes),
        size(memory.low_free_bytes),
    );
    table.to_string()
}

fn reserve(context: &Context, options: Reserve) -> Result<(), Failure> {
    let Reserve {
        cpus,
        cpu_list,
        memory,
    } = options;
    let cores = cpu_list.map(CoreRequest::List);
    let cores = cores.or(cpus.map(CoreRequest::Count));
    let driver = context.driver()?;
    let chosen = machine::reserve(&driver, &context.root, cores.as_ref(), memory)?;
    let cores = CpuList(chosen.iter().map(|one| one.cpu).collect());
    let memory = memory.map_or(Size(0), |spec| spec.size);
    output::line(&format!("reserved cores {cores}, memory {memory}"))
}

#[cfg(test)]
mod tests {
    use insula_machine::{CoreView, MemoryView, NumaView};
    use insula_node::device::DeviceView;

    use super::*;

    #[test]
    fn findings_as_text() {
        let finding = |subject, verdict, hint: Option<&str>| Finding {
            subject,
            verdict,
            found: "something".into(),
            hint: hint.map(str::to_owned),
        };
        let findings = [
            finding("cores", Verdict::Ok, None),
            finding("hyper-threads", Verdict::Untested, Some("switch them off")),
            finding("memory", Verdict::Bad, Some("buy more")),
        ];
        insta::assert_snapshot!(check_text(&findings, Verdict::Bad));
        assert!(
            check_text(&findings[..1], Verdict::Ok).ends_with("\n\nThis machine can host nodes.\n")
        );
    }

    fn device(address: &str, node: Option<&str>, obstacle: Option<&str>) -> DeviceView {
        DeviceView {
            address: address.parse().unwrap(),
            class: "010802".into(),
            kind: "NVMe",
            id: "1b36:0010".into(),
            driver: Some(if node.is_some() { "insula" } else { "nvme" }.into()),
            node: node.map(str::to_owned),
            obstacle: obstacle.map(str::to_owned),
        }
    }

    #[test]
    fn a_machine_as_text() {
        let core = |cpu, owner, node: Option<&str>| CoreView {
            cpu,
            apic_id: cpu * 2,
            owner,
            online: cpu == 0,
            node: node.map(str::to_owned),
            numa_node: Some(0),
            package: None,
        };
        let cores = vec![
            core(0, "base", None),
            core(1, "base", None),
            core(2, "pool", None),
            core(3, "node", Some("web")),
        ];
        let memory = MemoryView {
            base_total_bytes: Some(4 << 30),
            base_available_bytes: None,
            pool_total_bytes: 1 << 30,
            pool_free_bytes: 512 << 20,
            allocated_bytes: 64 << 20,
            quarantined_bytes: 8192,
            low_total_bytes: 0x80000,
            low_free_bytes: 0x77000,
            numa_nodes: vec![NumaView {
                numa_node: 0,
                total_bytes: 4 << 30,
                free_bytes: 1 << 30,
            }],
        };
        let view = MachineView {
            apic_mode: "xapic",
            tsc_khz: 2_000_000,
            cores,
            memory,
            devices: vec![
                device("0000:01:00.0", None, None),
                device("0000:02:00.0", Some("web"), None),
                device("0000:00:1f.2", None, Some("on a root bus")),
            ],
        };
        insta::assert_snapshot!(info_text(&view));
    }
}
