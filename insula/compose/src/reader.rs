//! From a file's tables to what they describe, with all errors of the file alone.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::time::Duration;

use insula_abi::NODE_CPUS_MAX;
use insula_base::units::{CpuList, Size};
use insula_driver::name::Name;
use insula_image::{BUILT_IN, BuildFiles, Files};
use insula_node::attachment::{DiskSpec, Networking};
use insula_node::cores::CoreRequest;
use insula_node::memory::MemorySpec;
use insula_node::policy::{Policy, Restart};
use toml::Spanned;

use super::diagnostic::{Diagnostic, Source, Span};
use super::file::{File, ImageTable, Key, NodeTable, OneOrMany, ReadyTable, Written};
use super::order::find_cycle;
use super::project::{
    FILE, Project, Ready, WantedAttachments, WantedImage, WantedKernel, WantedNode, dependencies,
};

/// Memory of a node whose table has none.
const MEMORY: MemorySpec = MemorySpec {
    size: Size(512 << 20),
    numa_node: None,
    below: None,
    above: None,
    chunk: None,
};

/// Converts a file's tables and collects errors.
pub(super) struct Reader<'a> {
    source: &'a Source,
    path: PathBuf,
    diagnostics: Vec<Diagnostic>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(source: &'a Source) -> Self {
        Self {
            source,
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
        let at = file.project.as_ref().map_or(0..0, Spanned::span);
        let own_name = file.project.map(|key| parts(key).0);
        let name = name.cloned().or(own_name);
        let name = name.or_else(|| self.default_name());
        let images = file.images.into_iter();
        let mut images: Vec<_> = images
            .filter_map(|(key, table)| self.image(parts(key), table))
            .collect();
        images.sort_by_key(|image| image.at.start);
        let nodes = file.nodes.into_iter();
        let mut nodes: Vec<_> = nodes
            .map(|(key, table)| self.node(parts(key), table))
            .collect();
        nodes.sort_by_key(|node| node.at.start);
        self.check_order(&nodes);
        match name {
            Some(name) if self.diagnostics.is_empty() => Ok(Project {
                name,
                at,
                source: self.source.clone(),
                path: self.path,
                images,
                nodes,
            }),
            _ => Err(self.diagnostics),
        }
    }

    fn note(&mut self, at: Span, message: impl Display, hint: &str) {
        self.diagnostics
            .push(self.source.diagnostic(at, message, hint));
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

    fn image(&mut self, (name, at): (Name, Span), table: ImageTable) -> Option<WantedImage> {
        let initrd_at = table.initrd.as_ref().map(Spanned::span);
        let agent = self.agent(&at, &table);
        let (kernel, kernel_at) = self.kernel(&at, table.installed, table.kernel, table.initrd)?;
        let kernel = match (kernel, agent) {
            (WantedKernel::Installed(release), Some(files)) => WantedKernel::Agent(release, files),
            (kernel, _) => kernel,
        };
        Some(WantedImage {
            name,
            at,
            kernel,
            initrd_at: initrd_at.unwrap_or_else(|| kernel_at.clone()),
            kernel_at,
            append: table.append,
            payload: table.layout.into(),
        })
    }

    /// What the initial file system is built from, for an image with an agent.
    fn agent(&mut self, at: &Span, table: &ImageTable) -> Option<BuildFiles> {
        let folders = [&table.content, &table.module_folder];
        let folder_at = folders.into_iter().flatten().map(Spanned::span).next();
        if !table.agent {
            if let Some(at) = folder_at {
                let hint = "set agent = true, or remove this key";
                self.note(
                    at,
                    "only an image with an agent is built from folders",
                    hint,
                );
            }
            return None;
        }
        if table.installed.is_none() {
            let hint = "give its release: installed = \"6.12\"";
            let message = "an image with an agent needs an installed kernel";
            self.note(at.clone(), message, hint);
        }
        let [content, module_folder] =
            folders.map(|folder| folder.as_ref().map(|path| self.beside(path.get_ref())));
        Some(BuildFiles {
            module_folder,
            content,
        })
    }

    /// What an image is made from, and where that is in the file.
    fn kernel(
        &mut self,
        at: &Span,
        installed: Option<Spanned<String>>,
        kernel: Option<Spanned<PathBuf>>,
        initrd: Option<Spanned<PathBuf>>,
    ) -> Option<(WantedKernel, Span)> {
        match (installed, kernel, initrd) {
            (Some(release), None, None) => {
                let at = release.span();
                Some((WantedKernel::Installed(release.into_inner()), at))
            }
            (None, Some(kernel), initrd) => {
                let files = Files {
                    kernel: self.beside(kernel.get_ref()),
                    initrd: initrd.map(|initrd| self.beside(initrd.get_ref())),
                };
                Some((WantedKernel::Files(files), kernel.span()))
            }
            (installed, ..) => {
                let message = match installed {
                    Some(_) => "an installed kernel has its own files",
                    None => "the image has no kernel",
                };
                let hint = "give either `installed`, or `kernel` and optionally `initrd`";
                self.note(at.clone(), message, hint);
                None
            }
        }
    }

    /// An absolute path, from one relative to the file's folder.
    fn beside(&self, path: &Path) -> PathBuf {
        self.path.parent().unwrap_or(Path::new("/")).join(path)
    }

    fn node(&mut self, (name, at): (Name, Span), mut table: NodeTable) -> WantedNode {
        let attachments = self.attachments(&at, &mut table);
        let (cores, cores_at) = self.cores(&at, table.cpus, table.cpu_list);
        let cores_max = self.cores_max(&cores, table.max_cpus);
        let (memory, memory_at) = self.memory(&at, table.memory);
        let (image, image_at) = parts(table.image);
        let append_at = span_of(table.append.as_ref(), &at);
        let ready = table.ready.map(|ready| self.ready(ready));
        let devices_at = span_of(table.device.as_ref(), &at);
        let devices = table.device.map_or_else(Vec::new, values);
        WantedNode {
            name,
            at,
            image,
            image_at,
            cores,
            cores_at,
            cores_max,
            memory,
            memory_at,
            append: table.append.map(Spanned::into_inner).unwrap_or_default(),
            append_at,
            devices,
            devices_at,
            force_devices: table.force_device,
            attachments,
            dump_on_crash: table.dump_on_crash,
            policy: Policy {
                restart: table
                    .restart
                    .map_or_else(Restart::default, |key| parts(key).0),
                on_hang: table.on_hang,
                reboot: !table.no_reboot,
                ..Policy::default()
            },
            after: table.after.into_iter().map(parts).collect(),
            ready,
        }
    }

    fn attachments(&mut self, at: &Span, table: &mut NodeTable) -> WantedAttachments {
        let root_at = span_of(table.rootfs.as_ref(), at);
        let root = table.rootfs.take();
        let overlay = table.overlay.as_ref();
        if let (Some(overlay), None) = (overlay.filter(|one| *one.get_ref()), &root) {
            let hint = "set `rootfs`, or remove `overlay`";
            self.note(overlay.span(), "an overlay needs a root file system", hint);
        }
        let disks_at = span_of(table.disk.as_ref(), at);
        let disks = table.disk.take().map_or_else(Vec::new, values);
        let publish_at = span_of(table.publish.as_ref(), at);
        let publish = table.publish.take().map_or_else(Vec::new, values);
        let address_at = span_of(table.ip.as_ref(), at);
        let address = table.ip.take().map(|key| parts(key).0);
        let program = self.program(&table.image, table.program.take());
        let is_on = table.network || address.is_some() || !publish.is_empty();
        WantedAttachments {
            root: root.map(|root| self.beside(root.get_ref())),
            root_at,
            overlay: overlay.is_some_and(|one| *one.get_ref()),
            disks: disks.into_iter().map(|disk| self.disk(disk)).collect(),
            disks_at,
            network: is_on.then_some(Networking { publish, address }),
            address_at,
            publish_at,
            program,
        }
    }

    /// The program that a node runs.
    fn program(&mut self, image: &Key<Name>, program: Option<Spanned<Vec<String>>>) -> Vec<String> {
        let Some(program) = program else {
            return Vec::new();
        };
        let (at, words) = (program.span(), program.into_inner());
        if words.first().is_none_or(String::is_empty) {
            let hint = "give one, as program = [\"/usr/sbin/nginx\", \"-g\", \"daemon off;\"]";
            self.note(at, "the list is empty", hint);
        } else if words.iter().any(|word| word.contains('\0')) {
            self.note(at, "a program's arguments cannot contain NUL", "remove it");
        } else if image.get_ref().0.as_str() == BUILT_IN {
            let message = "a node of the lightweight kernel starts without a program";
            let hint = "remove it, and run programs there with `insula exec`";
            self.note(at, message, hint);
        }
        words
    }

    fn disk(&self, disk: DiskSpec) -> DiskSpec {
        DiskSpec {
            path: self.beside(&disk.path),
            ..disk
        }
    }

    fn cores(
        &mut self,
        at: &Span,
        count: Option<Spanned<u32>>,
        list: Option<Key<CpuList>>,
    ) -> (CoreRequest, Span) {
        if let (Some(count), Some(_)) = (&count, &list) {
            let message = "`cpus` and `cpu_list` are mutually exclusive";
            self.note(count.span(), message, "remove one of them");
        }
        match (list, count) {
            (Some(list), _) => {
                let (list, at) = parts(list);
                self.check_count(list.0.len(), &at);
                (CoreRequest::List(list), at)
            }
            (None, Some(count)) => {
                self.check_count(*count.get_ref() as usize, &count.span());
                (CoreRequest::Count(*count.get_ref()), count.span())
            }
            (None, None) => (CoreRequest::Count(1), at.clone()),
        }
    }

    fn check_count(&mut self, count: usize, at: &Span) {
        if !(1..=NODE_CPUS_MAX).contains(&count) {
            let message = format!("a node cannot have {count} cores");
            let hint = format!("ask for 1 to {NODE_CPUS_MAX}");
            self.note(at.clone(), message, &hint);
        }
    }

    fn cores_max(&mut self, cores: &CoreRequest, max: Option<Spanned<u32>>) -> u32 {
        let Some(max) = max else {
            return 0;
        };
        self.check_count(*max.get_ref() as usize, &max.span());
        let first = match cores {
            CoreRequest::Count(count) => *count as usize,
            CoreRequest::List(list) => list.0.len(),
        };
        if (*max.get_ref() as usize) < first {
            let message = format!("the node starts with {first} cores, more than its maximum");
            let hint = "include the cores that it starts with, or remove `max_cpus`";
            self.note(max.span(), message, hint);
        }
        max.into_inner()
    }

    fn memory(
        &mut self,
        at: &Span,
        memory: Option<Spanned<OneOrMany<Written<MemorySpec>>>>,
    ) -> (Vec<MemorySpec>, Span) {
        let Some(memory) = memory else {
            return (vec![MEMORY], at.clone());
        };
        let at = memory.span();
        let specs = values(memory);
        if specs.is_empty() {
            let hint = "give an amount, such as \"512M\", or remove `memory`";
            self.note(at.clone(), "the node has no memory", hint);
        }
        (specs, at)
    }

    fn ready(&mut self, ready: ReadyTable) -> Ready {
        let log = ready.log;
        if log.get_ref().is_empty() || log.get_ref().contains('\n') {
            let message = "not a text within one line of a log";
            let hint = "give a part of the log line that marks the node as ready";
            self.note(log.span(), message, hint);
        }
        Ready {
            log: log.into_inner(),
            timeout: Duration::from_secs(ready.timeout_s.into()),
        }
    }

    /// Refuses unknown dependencies and dependency cycles.
    fn check_order(&mut self, nodes: &[WantedNode]) {
        let places: BTreeMap<&Name, &WantedNode> =
            nodes.iter().map(|node| (&node.name, node)).collect();
        for (other, at) in nodes.iter().flat_map(|node| &node.after) {
            if !places.contains_key(other) {
                let message = format!("there is no node '{other}' in this file");
                let hint = "name a node of this file, or remove it";
                self.note(at.clone(), message, hint);
            }
        }
        let Some(find_cycle) = find_cycle(&dependencies(nodes)) else {
            return;
        };
        let names: Vec<_> = find_cycle
            .iter()
            .chain(find_cycle.first())
            .map(Name::as_str)
            .collect();
        let next = find_cycle.get(1).or(find_cycle.first());
        let after = places.get(&find_cycle[0]).map(|node| &node.after);
        let mut after = after.into_iter().flatten();
        let at = after.find(|(name, _)| Some(name) == next);
        let message = format!("dependency cycle: {}", names.join(" after "));
        let hint = "remove one of these from `after`";
        self.note(at.map_or(0..0, |(_, at)| at.clone()), message, hint);
    }
}

/// Where a value is in the file, or else its table.
fn span_of<T>(value: Option<&Spanned<T>>, table: &Span) -> Span {
    value.map_or_else(|| table.clone(), Spanned::span)
}

/// The values of one or a list.
fn values<T>(written: Spanned<OneOrMany<Written<T>>>) -> Vec<T> {
    let all = written.into_inner().0.into_iter();
    all.map(|one| one.0).collect()
}

/// A value parsed from a string, and its place in the file.
fn parts<T>(key: Key<T>) -> (T, Span) {
    let span = key.span();
    (key.into_inner().0, span)
}
