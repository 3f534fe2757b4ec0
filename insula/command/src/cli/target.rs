//! Options of the commands that change nodes and containers by their names.

use std::str::FromStr;

use clap::Args;
use insula_driver::name::Name;
use nix::sys::signal::Signal;

/// Instead of names.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct AllOf {
    /// All nodes that are in a state for it; no containers
    #[arg(short, long, conflicts_with = "names")]
    pub(crate) all: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Nodes {
    /// The nodes
    #[arg(required_unless_present = "all", value_name = "NODE")]
    pub(crate) names: Vec<Name>,
    #[command(flatten)]
    pub(crate) all: AllOf,
}

#[derive(Debug, Args)]
pub(crate) struct Stop {
    /// The nodes or containers
    #[arg(required_unless_present = "all", value_name = "NODE|CONTAINER")]
    pub(crate) names: Vec<Name>,
    #[command(flatten)]
    pub(crate) all: AllOf,
    /// Seconds to wait for a node to power off, or a program to end, before it is killed
    #[arg(short, long, value_name = "SECONDS", default_value_t = 10)]
    pub(crate) time: u32,
}

#[derive(Debug, Args)]
pub(crate) struct Kill {
    /// The nodes or containers
    #[arg(required_unless_present = "all", value_name = "NODE|CONTAINER")]
    pub(crate) names: Vec<Name>,
    #[command(flatten)]
    pub(crate) all: AllOf,
    /// Signal for containers, by its name or number
    #[arg(short, long, value_name = "SIGNAL", default_value = "KILL")]
    pub(crate) signal: SignalName,
}

#[derive(Debug, Args)]
pub(crate) struct Wait {
    /// The nodes or containers
    #[arg(required = true, value_name = "NODE|CONTAINER")]
    pub(crate) names: Vec<Name>,
}

#[derive(Debug, Args)]
pub(crate) struct Remove {
    /// The nodes or containers
    #[arg(required_unless_present = "all", value_name = "NODE|CONTAINER")]
    pub(crate) names: Vec<Name>,
    #[command(flatten)]
    pub(crate) all: AllOf,
    /// Kill them first if they run
    #[arg(short, long)]
    pub(crate) force: bool,
}

/// A signal by its name, with or without `SIG`, or its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SignalName(pub(crate) Signal);

impl FromStr for SignalName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = text.parse::<i32>().ok();
        let by_number = number.and_then(|number| Signal::try_from(number).ok());
        let name = text.to_uppercase();
        let name = name.strip_prefix("SIG").unwrap_or(&name);
        let signal = by_number.or_else(|| format!("SIG{name}").parse().ok());
        signal
            .map(Self)
            .ok_or("there is no such signal; kill -l lists them")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_names_and_numbers() {
        for text in ["HUP", "SIGHUP", "sighup", "1"] {
            assert_eq!(text.parse(), Ok(SignalName(Signal::SIGHUP)), "{text}");
        }
        for text in ["", "SIG", "0", "99", "NOTHING"] {
            assert!(text.parse::<SignalName>().is_err(), "{text}");
        }
    }
}
