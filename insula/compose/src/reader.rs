//! From a file's tables to what they describe, with all errors of the file alone.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fmt::Display;
use std::path::{Path, PathBuf};

use insula_driver::name::Name;
use insula_image::{BuildFiles, Files};
use insula_node::NodeSpec;
use insula_node::networks::DEFAULT;
use insula_node::spec::VERSION;
use insula_policy::Policy;
use insula_servers::ServerSpec;

use super::diagnostic::{Diagnostic, Source, Span};
use super::file::{File, ImageTable, NetworkTable};
use super::order::find_cycle;
use super::project::{
    FILE, Project, WantedImage, WantedKernel, WantedNetwork, WantedNode, WantedServer, dependencies,
};
use super::spans::Spans;

/// Converts a file's tables and collects errors.
pub(super) struct Reader<'a> {
    source: &'a Source,
    spans: Spans,
    path: PathBuf,
    diagnostics: Vec<Diagnostic>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(source: &'a Source, spans: Spans) -> Self {
        Self {
            source,
            spans,
            path: std::path::absolute(&source.path).unwrap_or_else(|_| source.path.clone()),
            diagnostics: Vec::new(),
        }
    }

    /// Converts the whole file.
    pub(super) fn project(
        mut self,
        file: File,
        name: Option<&Name>,
    ) -> Result<Project, Vec<Diagnostic>> {
        self.check_version(file.version);
        let name = name.cloned().or(file.project);
        let name = name.or_else(|| self.default_name());
        let images = file.images.into_iter();
        let mut images: Vec<_> = images
            .filter_map(|(name, table)| self.image(name, table))
            .collect();
        images.sort_by_key(|image| image.spans.at("").start);
        let nodes = file.nodes.into_iter();
        let mut nodes: Vec<_> = nodes
            .filter_map(|(name, spec)| self.node(name, spec))
            .collect();
        nodes.sort_by_key(|node| node.spans.at("").start);
        self.check_order(&nodes);
        let networks = self.networks(file.networks);
        let servers = self.servers(file.servers);
        let policies = self.policies(file.policy);
        match name {
            Some(name) if self.diagnostics.is_empty() => Ok(Project {
                name,
                at: self.spans.at("project"),
                source: self.source.clone(),
                path: self.path,
                images,
                nodes,
                networks,
                servers,
                policies,
            }),
            _ => Err(self.diagnostics),
        }
    }

    fn note(&mut self, at: Span, message: impl Display, hint: &str) {
        self.diagnostics
            .push(self.source.diagnostic(at, message, hint));
    }

    fn check_version(&mut self, version: Option<u32>) {
        if let Some(version) = version.filter(|&version| version != VERSION) {
            let message = format!("this command does not know version {version} of the format");
            let hint = format!(
                "it knows version {VERSION}: use the insula for which the file was written"
            );
            self.note(self.spans.at("version"), message, &hint);
        }
    }

    /// The folder's name, or, of a file of another name, its own without the extension.
    fn default_name(&mut self) -> Option<Name> {
        let by_folder = self.path.file_name() == Some(OsStr::new(FILE));
        let text = match by_folder {
            true => self.path.parent().and_then(Path::file_name),
            false => self.path.file_stem(),
        };
        let text = text.unwrap_or_default().to_string_lossy().into_owned();
        match text.parse() {
            Ok(name) => Some(name),
            Err(error) => {
                let message = format!("the project needs a name: {error}");
                let hint = "set one at the top: project = \"…\"";
                self.note(0..0, message, hint);
                None
            }
        }
    }

    fn image(&mut self, name: Name, table: ImageTable) -> Option<WantedImage> {
        let spans = self.spans.of("images").of(name.as_str());
        let agent = self.agent(&spans, &table);
        let (append, payload) = (table.append.clone(), table.layout);
        let kernel = match (self.kernel(&spans, table)?, agent) {
            (WantedKernel::Installed(release), Some(files)) => WantedKernel::Agent(release, files),
            (kernel, _) => kernel,
        };
        Some(WantedImage {
            name,
            kernel,
            append,
            payload,
            spans,
        })
    }

    /// What the initial file system is built from, for an image with an agent.
    fn agent(&mut self, spans: &Spans, table: &ImageTable) -> Option<BuildFiles> {
        let given = ["content", "module_folder"];
        if !table.agent {
            if let Some(key) = given.into_iter().find(|key| spans.has(key)) {
                let message = "only an image with an agent is built from folders";
                let hint = "set agent = true, or remove this key";
                self.note(spans.at(key), message, hint);
            }
            return None;
        }
        if table.installed.is_none() {
            let hint = "give its release: installed = \"6.12\"";
            let message = "an image with an agent needs an installed kernel";
            self.note(spans.at("installed"), message, hint);
        }
        let beside = |path: &Option<PathBuf>| path.as_ref().map(|path| self.folder().join(path));
        Some(BuildFiles {
            module_folder: beside(&table.module_folder),
            content: beside(&table.content),
            criu: None,
        })
    }

    /// What an image is made from.
    fn kernel(&mut self, spans: &Spans, table: ImageTable) -> Option<WantedKernel> {
        match (table.installed, table.kernel, table.initrd) {
            (Some(release), None, None) => Some(WantedKernel::Installed(release)),
            (None, Some(kernel), initrd) => Some(WantedKernel::Files(Files {
                kernel: self.folder().join(kernel),
                initrd: initrd.map(|initrd| self.folder().join(initrd)),
            })),
            (installed, ..) => {
                let message = match installed {
                    Some(_) => "an installed kernel has its own files",
                    None => "the image has no kernel",
                };
                let hint = "give either `installed`, or `kernel` and optionally `initrd`";
                self.note(spans.at(""), message, hint);
                None
            }
        }
    }

    /// The file's folder: paths in it are relative to it.
    fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("/"))
    }

    fn node(&mut self, name: Name, mut spec: NodeSpec) -> Option<WantedNode> {
        let spans = self.spans.of("nodes").of(name.as_str());
        spec.resolve(self.folder());
        for error in spec.check().err().into_iter().flatten() {
            let diagnostic = self.source.diagnostic_from(spans.at(error.option), &error);
            self.diagnostics.push(diagnostic);
        }
        let Some(image) = spec.image.clone() else {
            let hint = "name one, such as image = \"debian\"";
            self.note(spans.at(""), "the node has no image", hint);
            return None;
        };
        Some(WantedNode {
            name,
            image,
            spec,
            spans,
        })
    }

    /// Refuses to describe the network of all nodes.
    fn networks(&mut self, tables: BTreeMap<Name, NetworkTable>) -> Vec<WantedNetwork> {
        let all = self.spans.of("networks");
        let mut networks = Vec::new();
        for (name, table) in tables {
            let spans = all.of(name.as_str());
            if name.as_str() == DEFAULT {
                let message = format!("'{DEFAULT}' is the network of all nodes");
                let hint = "give it another name; `network = true` connects a node to that of all";
                self.note(spans.at(""), message, hint);
            }
            networks.push(WantedNetwork {
                name,
                subnet: table.subnet,
                internal: table.internal,
                spans,
            });
        }
        networks.sort_by_key(|network| network.spans.at("").start);
        networks
    }

    /// Resolves the paths of servers' programs, and refuses servers without node or program.
    fn servers(&mut self, nodes: BTreeMap<Name, BTreeMap<Name, ServerSpec>>) -> Vec<WantedServer> {
        let mut wanted = Vec::new();
        for (node, servers) in nodes {
            let spans = self.spans.of("servers").of(node.as_str());
            if !self.spans.of("nodes").has(node.as_str()) {
                let message = format!("there is no node '{node}' in this file");
                self.note(spans.at(""), message, "name a node of this file");
            }
            for (name, mut spec) in servers {
                let spans = spans.of(name.as_str());
                match spec.command.first_mut() {
                    None => {
                        let hint = "name its program: command = [\"insula-files\", \"memory\"]";
                        self.note(spans.at("command"), "the server has no program", hint);
                    }
                    Some(program) if program.contains('/') => {
                        *program = self.folder().join(&*program).to_string_lossy().into_owned();
                    }
                    Some(_) => {}
                }
                wanted.push(WantedServer {
                    node: node.clone(),
                    name,
                    spec,
                    at: spans.at(""),
                });
            }
        }
        wanted
    }

    /// Resolves the paths of policies, and refuses those that make no sense.
    fn policies(&mut self, mut policies: Vec<Policy>) -> Vec<Policy> {
        let mut known = BTreeSet::new();
        let spans = self.spans.of("policy");
        for (policy, index) in policies.iter_mut().zip(0..) {
            let spans = spans.of(&format!("{index}"));
            policy.pid_file = self.folder().join(&policy.pid_file);
            if let Err(error) = policy.check() {
                self.note(spans.at(error.key()), &error, error.hint());
            }
            if !known.insert(policy.name.clone()) {
                let message = format!("there are two policies '{}'", policy.name);
                self.note(spans.at("name"), message, "give one another name");
            }
        }
        policies
    }

    /// Refuses unknown dependencies and dependency cycles.
    fn check_order(&mut self, nodes: &[WantedNode]) {
        let places: BTreeMap<&Name, &WantedNode> =
            nodes.iter().map(|node| (&node.name, node)).collect();
        let known = self.spans.of("nodes");
        for node in nodes {
            for (index, other) in node.spec.after.iter().enumerate() {
                if !known.has(other.as_str()) {
                    let message = format!("there is no node '{other}' in this file");
                    let hint = "name a node of this file, or remove it";
                    self.note(node.spans.at(&format!("after.{index}")), message, hint);
                }
            }
        }
        let Some(cycle) = find_cycle(&dependencies(nodes)) else {
            return;
        };
        let next = cycle.get(1).unwrap_or(&cycle[0]);
        let names: Vec<_> = cycle
            .iter()
            .chain(cycle.first())
            .map(Name::as_str)
            .collect();
        let message = format!("dependency cycle: {}", names.join(" after "));
        let at = places.get(&cycle[0]).map_or(0..0, |node| {
            let index = node.spec.after.iter().position(|name| name == next);
            node.spans
                .at(&format!("after.{}", index.unwrap_or_default()))
        });
        self.note(at, message, "remove one of these from `after`");
    }
}
