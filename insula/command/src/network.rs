//! `insula network`.

use std::process::ExitCode;

use insula_driver::name::Name;
use insula_node::networks::{self, NetworkRequest, NetworkView};

use super::cli::{Network, NetworkCreate};
use super::targets::Targets;
use super::{Context, Failure, output};
use crate::report::{Align, Table};

pub(super) fn network(context: &Context, command: Network) -> Result<ExitCode, Failure> {
    match command {
        Network::Create(options) => create(context, options)?,
        Network::Ls { json } => list(context, json)?,
        Network::Inspect { names, .. } => inspect(context, &names)?,
        Network::Rm { names } => {
            let driver = context.driver()?;
            return Targets::named(names)
                .each(|name| Ok(networks::remove(&driver, &context.root, name)?));
        }
        Network::Prune => return prune(context),
    }
    Ok(ExitCode::SUCCESS)
}

fn create(context: &Context, options: NetworkCreate) -> Result<(), Failure> {
    let json = options.json;
    let request = NetworkRequest {
        name: options.name,
        subnet: options.subnet,
        internal: options.internal,
        project: None,
        file: None,
    };
    let created = networks::create(&context.driver()?, &context.root, &request)?;
    match json {
        true => output::json(&created),
        false => output::line(&created.name),
    }
}

fn list(context: &Context, json: bool) -> Result<(), Failure> {
    let networks = networks::networks(&context.driver()?, &context.root)?;
    match json {
        true => output::json(&networks),
        false => output::print(&table(&networks).to_string()),
    }
}

fn inspect(context: &Context, names: &[Name]) -> Result<(), Failure> {
    let driver = context.driver()?;
    let shown = names
        .iter()
        .map(|name| networks::network(&driver, &context.root, name));
    output::json(&shown.collect::<Result<Vec<_>, _>>()?)
}

fn prune(context: &Context) -> Result<ExitCode, Failure> {
    let driver = context.driver()?;
    let networks = networks::networks(&driver, &context.root)?.into_iter();
    let unused = networks.filter(|one| one.created_unix_s.is_some() && one.nodes.is_empty());
    let names = unused
        .map(|one| one.name.parse())
        .collect::<Result<Vec<Name>, _>>()?;
    Targets::listed(names).each(|name| Ok(networks::remove(&driver, &context.root, name)?))
}

fn table(networks: &[NetworkView]) -> Table {
    let columns = ["NAME", "SUBNET", "BRIDGE", "INTERNAL", "NODES"];
    let mut table = Table::new(&columns.map(|column| (column, Align::Left)));
    for network in networks {
        let nodes: Vec<_> = network
            .nodes
            .iter()
            .map(|node| node.name.as_str())
            .collect();
        table.row([
            network.name.clone(),
            network
                .subnet
                .map_or_else(|| "-".to_owned(), |subnet| subnet.to_string()),
            network.bridge.clone(),
            if network.internal { "yes" } else { "no" }.to_owned(),
            if nodes.is_empty() {
                "-".to_owned()
            } else {
                nodes.join(" ")
            },
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use insula_node::networks::NetworkNode;

    use super::*;

    #[test]
    fn networks_as_a_table() {
        let network = |name: &str, subnet: Option<&str>, nodes: &[&str]| NetworkView {
            name: name.into(),
            subnet: subnet.map(|text| text.parse().unwrap()),
            gateway: None,
            bridge: "insula1".into(),
            internal: subnet.is_some(),
            created_unix_s: None,
            project: None,
            nodes: nodes
                .iter()
                .map(|&name| NetworkNode {
                    name: name.into(),
                    address: None,
                })
                .collect(),
        };
        let networks = [
            network("default", None, &[]),
            network("back", Some("10.79.0.0/16"), &["db", "web"]),
        ];
        insta::assert_snapshot!(table(&networks));
    }
}
