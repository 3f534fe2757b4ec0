//! `insula port`.

use insula_base::error::Error;
use insula_driver::name::Name;
use insula_node as node;
use insula_node::attachment::{NodePort, Publish};

use super::cli::Port;
use super::{Context, Failure, container, output};

/// Prints where published ports are, as podman does.
pub(super) fn port(context: &Context, options: &Port) -> Result<(), Failure> {
    let published = published(context, &options.name)?;
    let Some(wanted) = options.port else {
        return output::print(&published.iter().map(line).collect::<String>());
    };
    let at: String = published
        .iter()
        .filter(|one| one.node_port() == wanted)
        .map(|one| format!("{}\n", one.address()))
        .collect();
    match at.is_empty() {
        true => Err(not_published(&options.name, wanted).into()),
        false => output::print(&at),
    }
}

fn published(context: &Context, name: &Name) -> Result<Vec<Publish>, Failure> {
    if let Some(record) = container::find(context, name)? {
        return Ok(record.publish);
    }
    let handle = node::find(&context.driver()?, name)?;
    let network = handle.record.and_then(|record| record.network);
    Ok(network.map_or_else(Vec::new, |network| network.publish))
}

fn line(publish: &Publish) -> String {
    format!("{} -> {}\n", publish.node_port(), publish.address())
}

fn not_published(name: &Name, port: NodePort) -> Error {
    Error::new(format!("no port leads to port {port} of '{name}'"))
        .hint("`insula port` without a number shows all; --publish of run and exec makes them")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_as_podmans() {
        for (text, shown) in [
            ("127.0.0.1:8080:80", "80/tcp -> 127.0.0.1:8080\n"),
            ("[::1]:5353:53/udp", "53/udp -> [::1]:5353\n"),
        ] {
            assert_eq!(line(&text.parse().unwrap()), shown);
        }
    }
}
