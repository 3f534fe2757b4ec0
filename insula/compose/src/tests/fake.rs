//! A folder with files, and a machine as the module would report it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use insula_abi::{Cpu, CpuOwner, Machine};
use insula_base::root::Root;
use insula_base::topology::{BaseMemory, Processor, Topology};
use insula_node::RunRequest;
use insula_node::cores::{ChosenCore, CoreRequest, Cores};
use insula_node::networks::Networks;
use tempfile::TempDir;

use crate::{
    CurrentNode, CurrentState, Diagnostic, ImageAction, NetworkAction, NodeAction, Plan, PlanError,
    Project, RunState, Source,
};

/// A tree with two installed kernels and, in `shop/`, files that an `insula.toml` there may name.
pub(super) struct Folder(TempDir);

impl Folder {
    pub(super) fn new() -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        for path in ["boot", "shop"] {
            fs::create_dir(folder.path(path)).unwrap();
        }
        folder.write("shop/vmlinux", &kernel("6.1.0-own"));
        folder.write("shop/initrd.img", b"an initrd");
        folder.write("shop/foreign", b"no kernel at all");
        folder.write("shop/root.erofs", &root_image());
        for release in ["6.1.0-9-amd64", "6.12.1-amd64"] {
            folder.write(&format!("boot/vmlinuz-{release}"), &kernel(release));
            folder.write(&format!("boot/initrd.img-{release}"), b"an initrd");
        }
        folder
    }

    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    pub(super) fn write(&self, path: &str, bytes: &[u8]) {
        fs::write(self.path(path), bytes).unwrap();
    }

    /// What a file `shop/insula.toml` with that text describes.
    pub(super) fn read(&self, text: &str) -> Result<Project, Vec<Diagnostic>> {
        self.read_as("shop/insula.toml", text)
    }

    pub(super) fn read_as(&self, path: &str, text: &str) -> Result<Project, Vec<Diagnostic>> {
        let source = Source {
            path: self.path(path),
            text: text.to_owned(),
        };
        Project::read(&source, None)
    }

    /// The plan for it.
    pub(super) fn plan(&self, text: &str, current: &CurrentState) -> Result<Plan, PlanError> {
        self.plan_of(&[self.read(text).map_err(PlanError)?], current)
    }

    /// The plan for all of them.
    pub(super) fn plan_of(
        &self,
        projects: &[Project],
        current: &CurrentState,
    ) -> Result<Plan, PlanError> {
        Plan::new(&Root::at(self.0.path()), projects, current)
    }

    /// A text without the folder's random name.
    pub(super) fn named(&self, text: &str) -> String {
        text.replace(&*self.0.path().to_string_lossy(), "")
    }
}

/// An ELF file that is accepted as a kernel (see `kimage`): one segment of 32 MiB, with a banner.
fn kernel(release: &str) -> Vec<u8> {
    const LOAD: u64 = 16 << 20;
    const LINKED: u64 = 0xffff_ffff_8000_0000 + LOAD;
    let banner = format!("Linux version {release} (nobody)\0");
    let (offset, size) = (64_u64 + 56, banner.len() as u64);
    let mut file = b"\x7fELF\x02\x01\x01".to_vec();
    file.resize(16, 0);
    let (executable, x86_64) = (2_u16, 62_u16);
    for word in [executable, x86_64] {
        file.extend(word.to_le_bytes());
    }
    file.extend(1_u32.to_le_bytes());
    // Entry; where the program headers are; no section headers.
    for word in [LOAD, 64, 0] {
        file.extend(word.to_le_bytes());
    }
    file.extend(0_u32.to_le_bytes());
    // Sizes and numbers of headers.
    for word in [64_u16, 56, 1, 64, 0, 0] {
        file.extend(word.to_le_bytes());
    }
    let (load, all_rights) = (1_u32, 7_u32);
    for word in [load, all_rights] {
        file.extend(word.to_le_bytes());
    }
    for word in [offset, LINKED, LOAD, size, 32 << 20, 2 << 20] {
        file.extend(word.to_le_bytes());
    }
    file.extend(banner.as_bytes());
    file
}

/// A file that is accepted as an EROFS image.
fn root_image() -> Vec<u8> {
    const MAGIC_AT: usize = 1024;
    let mut image = vec![0; 4096];
    image[MAGIC_AT..][..4].copy_from_slice(&[0xe2, 0xe1, 0xf5, 0xe0]);
    image
}

/// A machine of that many single-threaded cores and 8 GiB, with no nodes or images.
pub(super) fn machine(cpus: u32) -> CurrentState {
    let processor = |cpu| {
        let processor = Processor {
            online: true,
            siblings: vec![cpu],
            package: None,
            numa_node: None,
        };
        (cpu, processor)
    };
    let topology = Topology {
        processors: (0..cpus).map(processor).collect(),
        numa_nodes: BTreeMap::new(),
    };
    let cpu = |cpu| Cpu {
        cpu,
        apic_id: cpu,
        owner: CpuOwner::BASE,
        node: 0,
    };
    let all: Vec<_> = (0..cpus).map(cpu).collect();
    CurrentState {
        machine: Machine {
            trampoline: 0x9a000,
            tsc_khz: 2_000_000,
            lowmem_free: 500 << 10,
            ..Default::default()
        },
        view: Cores::new(&topology, &all),
        topology,
        base: Some(BaseMemory {
            total: 8 << 30,
            available: 8 << 30,
        }),
        nodes: BTreeMap::new(),
        networks: Networks::default(),
        images: BTreeMap::new(),
    }
}

/// The machine after a plan was carried out.
pub(super) fn carried_out(current: &CurrentState, plan: &Plan) -> CurrentState {
    let mut after = current.clone();
    for step in &plan.images {
        match &step.action {
            ImageAction::Keep => {}
            ImageAction::Add(prepared) | ImageAction::Replace(prepared) => {
                let description = Some(prepared.description.clone());
                after.images.insert(step.name.clone(), description);
            }
            ImageAction::Remove => {
                after.images.remove(&step.name);
            }
        }
    }
    let named = &mut after.networks.named;
    for step in &plan.networks {
        if !matches!(step.action, NetworkAction::Keep) {
            named.retain(|one| one.network.name != step.name);
        }
        if let NetworkAction::Add(network) | NetworkAction::Replace(network) = &step.action {
            named.push(network.clone());
        }
    }
    for step in &plan.nodes {
        if !matches!(step.action, NodeAction::Keep)
            && let Some(gone) = after.nodes.remove(&step.name)
        {
            after.view.mark_free(&gone.cpus);
        }
    }
    for step in &plan.nodes {
        if let NodeAction::Start(request) | NodeAction::Restart { request, .. } = &step.action {
            let node = started(request);
            let chosen = |&cpu: &u32| ChosenCore { cpu, apic_id: cpu };
            after
                .view
                .mark_used(&node.cpus.iter().map(chosen).collect::<Vec<_>>());
            after.nodes.insert(step.name.clone(), node);
        }
    }
    after
}

fn started(request: &RunRequest) -> CurrentNode {
    let CoreRequest::List(cpus) = &request.cores else {
        panic!("cores were not chosen");
    };
    CurrentNode {
        state: RunState::Running,
        cpus: cpus.0.clone(),
        memory_size: request.spec.memory_size(),
        devices: request.spec.device.clone(),
        network: request.attachments.network.clone(),
        disks: request.attachments.disks.clone(),
        image: request.spec.image.clone(),
        after: request.spec.after.clone(),
        described: request.described.clone(),
    }
}

/// A node that another user has started.
pub(super) fn foreign(cpus: &[u32]) -> CurrentNode {
    CurrentNode {
        state: RunState::Running,
        cpus: cpus.to_vec(),
        memory_size: 64 << 20,
        devices: Vec::new(),
        network: None,
        disks: Vec::new(),
        image: None,
        after: Vec::new(),
        described: None,
    }
}

/// An example for users, by its path in the project.
pub(super) fn example(path: &str) -> String {
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    fs::read_to_string(project.join(path)).unwrap()
}
