//! What a command does the same to: those that its user named, or all that have a certain state.

use std::process::ExitCode;

use insula_base::error::{Error, Kind};
use insula_driver::name::{self, Name};
use insula_node::Handle;

use super::cli::AllOf;
use super::{Context, Failure, output};

/// Nodes, containers, images or networks.
pub(super) struct Targets {
    names: Vec<Name>,
    /// Whether they were listed: one of them may have ended or been removed since, by its program's exit for
    /// instance, and then nothing is to be done to it.
    listed: bool,
}

impl Targets {
    /// Those that the user named.
    pub(super) fn named(names: Vec<Name>) -> Self {
        let listed = false;
        Self { names, listed }
    }

    /// Those that were found.
    pub(super) fn listed(names: Vec<Name>) -> Self {
        let listed = true;
        Self { names, listed }
    }

    /// Those that the user named, or all nodes that have this.
    pub(super) fn nodes(
        context: &Context,
        named: Vec<Name>,
        all: AllOf,
        has: impl Fn(&Handle) -> bool,
    ) -> Result<Self, Failure> {
        if !all.all {
            return Ok(Self::named(named));
        }
        let handles = insula_node::all(&context.driver()?)?;
        let names = handles.iter().filter(|handle| has(handle));
        let names = names.map(|handle| name::text(&handle.info.name).parse());
        Ok(Self::listed(names.collect::<Result<_, _>>()?))
    }

    /// Adds others that were found.
    pub(super) fn extend(&mut self, others: Vec<Name>) {
        self.names.extend(others);
    }

    /// Does it to each, and prints the names of those to which it was done; continues after a failure, and reports it
    /// by the exit status.
    pub(super) fn each(
        &self,
        action: impl Fn(&Name) -> Result<(), Failure>,
    ) -> Result<ExitCode, Failure> {
        let mut status = ExitCode::SUCCESS;
        for name in &self.names {
            match action(name) {
                Ok(()) => output::line(name.as_str())?,
                Err(failure) if self.listed && is_gone(&failure) => {}
                Err(failure) => {
                    output::print_error(failure.as_ref());
                    status = ExitCode::FAILURE;
                }
            }
        }
        Ok(status)
    }
}

/// Whether it failed since the node does not exist any more, or does not run any more.
pub(super) fn is_gone(failure: &Failure) -> bool {
    let kind = failure.downcast_ref::<Error>().map(|error| error.kind);
    matches!(kind, Some(Kind::NoNode | Kind::NotRunning))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(targets: &Targets, kind: Kind) -> ExitCode {
        let failed = |_: &Name| Err(Error::of(kind, "it was not done").into());
        targets.each(failed).unwrap()
    }

    #[test]
    fn those_that_were_listed_may_be_gone() {
        let names: Vec<Name> = vec!["db".parse().unwrap(), "web".parse().unwrap()];
        let listed = Targets::listed(names.clone());
        for kind in [Kind::NoNode, Kind::NotRunning] {
            assert_eq!(status(&listed, kind), ExitCode::SUCCESS);
        }
        // Without its image a node cannot be started.
        for kind in [Kind::NoImage, Kind::Other] {
            assert_eq!(status(&listed, kind), ExitCode::FAILURE);
        }
        assert_eq!(
            status(&Targets::named(names), Kind::NoNode),
            ExitCode::FAILURE
        );
    }
}
