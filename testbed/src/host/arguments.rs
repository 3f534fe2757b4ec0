//! Command line of `testbed`.

use clap::{Args, Parser, Subcommand};
use testbed::host::kernels::Flavour;
use testbed::host::machine::{Accelerator, Emulator, SpareDevices};
use testbed::host::root::Root;

/// Emulated machine to try Insula on: QEMU, a stock Debian kernel as the base, insula.ko and the
/// command `insula`.
#[derive(Parser)]
#[command(version)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) request: Request,
}

#[derive(Subcommand)]
pub(crate) enum Request {
    /// Fetch Debian's kernels and make the root disk, in the build folder.
    Fetch {
        /// Also the generic kernels.
        #[arg(long)]
        all: bool,
        /// Also the root disk for benchmarks.
        #[arg(long)]
        bench: bool,
        /// Also the root disk with large programs.
        #[arg(long)]
        applications: bool,
        /// Also the root disk with the validation tests of OCI runtimes, and the client of Kubernetes' runtime interface.
        #[arg(long)]
        conformance: bool,
        /// Also the root disk on which the project's packages, built first, are installed.
        #[arg(long)]
        installed: bool,
        /// Also QEMU of Debian's backports.
        #[arg(long)]
        backports: bool,
        /// Also build insula.ko, and try whether KVM works: what else takes time before the first machine can boot.
        #[arg(long)]
        ready: bool,
    },
    /// Build insula.ko.
    Module {
        /// Kernel to build for; may be given several times.
        #[arg(long, default_values = ["6.1", "6.12"])]
        kernel: Vec<Flavour>,
    },
    /// Build the programs and kernels of ours that machines get.
    Programs {
        /// Only what users have, not what tests do.
        #[arg(long)]
        project_only: bool,
    },
    /// Run a command inside; its output and exit status are passed on.
    Run {
        #[command(flatten)]
        machine: MachineArguments,
        /// Install neither module nor `insula`.
        #[arg(long)]
        bare: bool,
        /// Install only what users have, not what tests do: less to fetch and to build.
        #[arg(long, conflicts_with = "bare")]
        project_only: bool,
        /// Time limit, in seconds.
        #[arg(long = "limit", default_value_t = 300, value_name = "SECONDS")]
        limit_s: u64,
        /// The command and its arguments.
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// Open a root shell inside, with insula.ko loaded.
    Shell {
        #[command(flatten)]
        machine: MachineArguments,
    },
    /// Play scenarios, each on its own machine, and count those that passed.
    #[cfg(feature = "scenarios")]
    Scenario(crate::scenarios::ScenarioArguments),
}

#[derive(Args)]
pub(crate) struct MachineArguments {
    /// The base's kernel: 6.1, 6.12, 6.1-generic, 6.12-generic or unstable, or one built with a sanitizer:
    /// 6.1-kasan, 6.12-kasan or 6.12-kcsan.
    #[arg(long, default_value = "6.12")]
    pub(crate) kernel: Flavour,
    /// Cores.
    #[arg(long, default_value_t = 4)]
    pub(crate) cpus: u32,
    /// Memory, in MiB.
    #[arg(long, default_value_t = 4096, value_name = "MIB")]
    pub(crate) memory: u64,
    /// NUMA nodes.
    #[arg(long, default_value_t = 1, value_name = "COUNT")]
    pub(crate) numa_nodes: u32,
    /// PCI functions to be given to nodes: none, plain, iommu, remapping or x2apic.
    #[arg(long, default_value_t, value_name = "KIND")]
    pub(crate) spare_devices: SpareDevices,
    /// tcg, tcg-parallel (faster, for measurements) or kvm; without it, kvm where it
    /// works, else tcg.
    #[arg(long, env = "INSULA_ACCELERATOR")]
    pub(crate) accelerator: Option<Accelerator>,
    /// QEMU that runs it: installed, or backports for that of Debian's backports, which has x2APIC.
    #[arg(long, default_value_t, value_name = "WHICH")]
    pub(crate) emulator: Emulator,
    /// Use the root disk for benchmarks.
    #[arg(long)]
    pub(crate) bench: bool,
    /// Use the root disk with large programs.
    #[arg(long, conflicts_with = "bench")]
    pub(crate) applications: bool,
    /// Use the root disk with the validation tests of OCI runtimes.
    #[arg(long, conflicts_with_all = ["bench", "applications"])]
    pub(crate) conformance: bool,
    /// Do not load insula.ko; it is in /payload/insula.ko.
    #[arg(long)]
    pub(crate) no_module: bool,
    /// Add to the base kernel's command line.
    #[arg(
        long,
        default_value = "",
        allow_hyphen_values = true,
        value_name = "TEXT"
    )]
    pub(crate) append: String,
    /// Add to QEMU's command line; may be given several times.
    #[arg(long, allow_hyphen_values = true, value_name = "WORD")]
    pub(crate) qemu: Vec<String>,
}

impl MachineArguments {
    pub(crate) fn root(&self) -> Root {
        let wanted = [
            (self.bench, Root::Bench),
            (self.applications, Root::Applications),
            (self.conformance, Root::Conformance),
        ];
        let found = wanted.iter().find(|(is_wanted, _)| *is_wanted);
        found.map_or(Root::Test, |&(_, root)| root)
    }
}
