//! Checks of the servers that are to run on the nodes.

use kimage::Format;

use super::Planner;
use super::candidate::Candidate;
use crate::diagnostic::Diagnostic;
use crate::project::WantedServer;

impl Planner<'_> {
    /// Refuses servers on nodes of Linux, and on cores that their nodes do not have.
    pub(super) fn check_servers(&mut self) {
        let all = self.candidates.iter();
        let diagnostics = all.flat_map(|one| {
            one.servers()
                .filter_map(|server| self.check_server(one, server))
        });
        let diagnostics: Vec<_> = diagnostics.collect();
        self.diagnostics.extend(diagnostics);
    }

    fn check_server(&self, one: &Candidate, server: &WantedServer) -> Option<Diagnostic> {
        let refused = |message: String, hint: &str| {
            let source = &one.project.source;
            Some(source.diagnostic(server.at.clone(), message, hint))
        };
        let node = &server.node;
        if one.image.loadable.format != Format::Lwk {
            let message = format!("the node '{node}' has no servers: it runs Linux");
            let hint = "servers run on nodes of the lightweight kernel, such as of image = \"lwk\"";
            return refused(message, hint);
        }
        let cores = self.core_count(one);
        let missing = server
            .spec
            .cpus
            .0
            .iter()
            .find(|&&cpu| cpu as usize >= cores);
        let missing = missing.filter(|_| cores > 0)?;
        refused(
            format!("the node '{node}' has no core {missing}"),
            "its cores are counted from 0",
        )
    }

    /// How many cores a node will have, at most; 0 if that is not known.
    fn core_count(&self, one: &Candidate) -> usize {
        let there = self.current.nodes.get(&one.node.name);
        let now = match one.is_started() {
            true => one.cores.len(),
            false => there.map_or(0, |there| there.cpus.len()),
        };
        now.max(one.node.spec.max_cpus.unwrap_or_default() as usize)
    }
}
