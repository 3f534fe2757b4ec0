//! Options of the commands that show nodes.

use std::str::FromStr;
use std::time::SystemTime;

use clap::Args;
use insula_driver::name::Name;
use insula_node::attachment::NodePort;

use crate::ps::Filter;

#[derive(Debug, Args)]
pub(crate) struct Ps {
    /// Also list nodes that stopped without failure; crashed ones are always listed
    #[arg(short, long)]
    pub(crate) all: bool,
    /// Only list what has this: name=PART, state=STATE, image=IMAGE, and for containers node=NODE. Of
    /// several of one key one is enough. With a state, stopped nodes are listed as well
    #[arg(short, long, value_name = "KEY=VALUE")]
    pub(crate) filter: Vec<Filter>,
    /// Print names only
    #[arg(short, long, conflicts_with_all = ["json", "format"])]
    pub(crate) quiet: bool,
    /// Print each by a template, as '{{.Names}} {{.State}}' or 'table {{.Names}} {{.State}}'; json for
    /// JSON
    #[arg(long, value_name = "TEMPLATE", conflicts_with = "json")]
    pub(crate) format: Option<String>,
    /// Accepted for scripts written for podman: nothing is truncated
    #[arg(long)]
    pub(crate) no_trunc: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Options of `insula port`.
#[derive(Debug, Args)]
pub(crate) struct Port {
    /// The node or container
    #[arg(value_name = "NODE|CONTAINER")]
    pub(crate) name: Name,
    /// Only where this port of it is
    #[arg(value_name = "PORT[/udp]", value_parser = port)]
    pub(crate) port: Option<NodePort>,
}

fn port(text: &str) -> Result<NodePort, &'static str> {
    let port = text.parse();
    port.map_err(|_| "give a number, as 80, 80/tcp or 53/udp")
}

#[derive(Debug, Args)]
pub(crate) struct Inspect {
    /// The nodes or containers
    #[arg(required = true, value_name = "NODE|CONTAINER")]
    pub(crate) names: Vec<Name>,
    /// Accepted for uniformity: the output is always JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Options of `insula stats`.
#[derive(Debug, Args)]
pub(crate) struct Stats {
    /// The nodes; by default all
    #[arg(value_name = "NODE")]
    pub(crate) names: Vec<Name>,
    /// Print JSON: by core, and by system call
    #[arg(long, conflicts_with = "prometheus")]
    pub(crate) json: bool,
    /// Print in Prometheus' text format
    #[arg(long)]
    pub(crate) prometheus: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Events {
    /// The nodes, also those that were removed; by default all
    #[arg(value_name = "NODE")]
    pub(crate) names: Vec<Name>,
    /// Start with events since a time (2026-11-24T14:00:00Z), or since a duration ago (10m)
    #[arg(long, value_name = "TIME")]
    pub(crate) since: Option<Time>,
    /// End with events until a time, in the same forms
    #[arg(long, value_name = "TIME")]
    pub(crate) until: Option<Time>,
    /// End with the last event that has happened, instead of waiting for more; without --since
    /// starts with the first
    #[arg(long)]
    pub(crate) no_stream: bool,
    /// Print a line of JSON for each event
    #[arg(long)]
    pub(crate) json: bool,
}

/// A time, given as such or as a duration ago.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Time(pub(crate) SystemTime);

impl FromStr for Time {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let time = || humantime::parse_rfc3339_weak(text).ok();
        let ago = || SystemTime::now().checked_sub(humantime::parse_duration(text).ok()?);
        let parsed = time().or_else(ago).map(Self);
        parsed.ok_or("use a time in UTC, as 2026-11-24T14:00:00Z, or a duration, as 10m")
    }
}

#[derive(Debug, Args)]
pub(crate) struct Top {
    /// Seconds between updates
    #[arg(short, long, value_name = "SECONDS", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub(crate) interval: u32,
}

#[derive(Debug, Args)]
pub(crate) struct Logs {
    /// The node or container
    #[arg(value_name = "NODE|CONTAINER")]
    pub(crate) name: Name,
    /// Follow the log until the node stops, or the container ends
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Only the last COUNT records
    #[arg(short = 'n', long, value_name = "COUNT")]
    pub(crate) tail: Option<usize>,
    /// Only records since a time (2026-11-24T14:00:00Z), or since a duration ago (10m)
    #[arg(long, value_name = "TIME")]
    pub(crate) since: Option<Time>,
    /// Only records until a time, in the same forms
    #[arg(long, value_name = "TIME")]
    pub(crate) until: Option<Time>,
    /// Print the time before each record
    #[arg(short, long)]
    pub(crate) timestamps: bool,
    /// Print one JSON object per record
    #[arg(long)]
    pub(crate) json: bool,
}

impl Logs {
    /// Whether times of records are asked for.
    pub(crate) fn needs_times(&self) -> bool {
        self.timestamps || self.since.is_some() || self.until.is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_are_times_and_durations() {
        let start: Time = "1970-01-01T00:00:10Z".parse().unwrap();
        assert_eq!(start.0, SystemTime::UNIX_EPOCH + Duration::from_secs(10));
        let ago: Time = "10m".parse().unwrap();
        let passed = SystemTime::now().duration_since(ago.0).unwrap().as_secs();
        assert!((600..660).contains(&passed), "{passed}");
        for text in ["", "soon", "99999999999999999999y"] {
            assert!(text.parse::<Time>().is_err(), "{text}");
        }
    }
}
