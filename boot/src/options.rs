//! The kernel options of nodes, each with its reason, and those that are refused.
//!
//! Source: the kernel's Documentation/admin-guide/kernel-parameters.txt. Everything else has its
//! default: in particular mitigations, KASLR and the console, of which a node has none (its log is
//! read from its memory).

/// Handling of an option that the user sets as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// Refused: the node would not work, or would disturb the machine.
    Fixed,
    /// The user's replaces it.
    Overridable,
    /// Both are given: the kernel combines them.
    Combined,
    /// The node's is given, and the base implements the user's.
    Handled,
}

/// Condition of an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    /// Every node.
    Always,
    /// A node with spare processors.
    WithSpares,
    /// A node without devices.
    WithoutDevices,
    /// A node without a serial console.
    WithoutSerialConsole,
    /// A node that is not confined by a monitor.
    Unconfined,
}

/// A kernel option of nodes.
#[derive(Debug, Clone, Copy)]
pub struct KernelOption {
    /// Its name.
    pub name: &'static str,
    /// Its value, or empty. [`TSC_KHZ`], [`PHANTOM`], [`CPUS`] and [`LISTED`] stand for values of
    /// the node.
    pub value: &'static str,
    /// Handling if the user sets it as well.
    pub rule: Rule,
    /// Its condition.
    pub condition: Condition,
    /// Its purpose.
    pub why: &'static str,
}

/// Placeholder for the frequency of the time stamp counter in kHz.
pub const TSC_KHZ: &str = "<tsc-khz>";
/// Placeholder for the local APIC id that is listed without such a processor.
pub const PHANTOM: &str = "<phantom>";
/// Placeholder for the initial number of processors.
pub const CPUS: &str = "<cpus>";
/// Placeholder for the number of processors with spares.
pub const LISTED: &str = "<cpus-and-spares>";

/// The ports that drivers must not use: of PCI configuration, and serial ports.
pub const CONFIG_PORTS: &str = "0xcf8,8,0x3f8,8,0x3e8,8,0x2e8,8";
/// Those of a confined node with devices.
pub const OTHER_PORTS: &str = "0x3f8,8,0x3e8,8,0x2e8,8";

/// A refused option.
#[derive(Debug, Clone, Copy)]
pub struct RefusedOption {
    /// Its name.
    pub name: &'static str,
    /// Its effect, as the end of a sentence that starts with "it".
    pub why: &'static str,
}

const fn option(
    name: &'static str,
    value: &'static str,
    rule: Rule,
    why: &'static str,
) -> KernelOption {
    KernelOption {
        name,
        value,
        rule,
        condition: Condition::Always,
        why,
    }
}

/// The options of nodes, in their order on the command line.
pub const OPTIONS: &[KernelOption] = &[
    option(
        "tsc_early_khz",
        TSC_KHZ,
        Rule::Fixed,
        "the node has no timer to calibrate its time stamp counter with",
    ),
    option(
        "tsc",
        "reliable",
        Rule::Overridable,
        "there is no clock to check the counter against, so it would be marked unstable; also \
         skips the check of each further processor's counter at its start",
    ),
    option(
        "no_ipi_broadcast",
        "1",
        Rule::Fixed,
        "an \"all but self\" interrupt would reach the base's cores: on a panic it would freeze \
         the base",
    ),
    KernelOption {
        condition: Condition::Unconfined,
        ..option(
            "nox2apic",
            "",
            Rule::Overridable,
            "where its cores are in x2APIC mode, which it leaves for lack of interrupt remapping: kernels \
             before 6.12 would do so only once they have chosen how to address interrupts, and then \
             choose logical destination mode, in which the base's interrupts reach the node as well",
        )
    },
    option(
        "apic_extnmi",
        "none",
        Rule::Overridable,
        "the base handles the machine's external NMI",
    ),
    option(
        "disable_cpu_apicid",
        PHANTOM,
        Rule::Fixed,
        "keeps kernels before 6.9 from starting the phantom processor, which is listed for those \
         from 6.9 on",
    ),
    KernelOption {
        condition: Condition::WithSpares,
        ..option(
            "maxcpus",
            CPUS,
            Rule::Fixed,
            "spare processors are listed so that they can be brought online later, but do not \
             belong to the node yet",
        )
    },
    option(
        "possible_cpus",
        LISTED,
        Rule::Overridable,
        "kernels before 6.9 would count the phantom processor among those that can be added",
    ),
    option(
        "memhp_default_state",
        "online",
        Rule::Overridable,
        "hot-added memory is used at once",
    ),
    option(
        "memory_hotplug.online_policy",
        "auto-movable",
        Rule::Overridable,
        "hot-added memory should be removable: in proportion to the initial memory, it only gets \
         movable pages",
    ),
    option(
        "irqaffinity",
        "0",
        Rule::Fixed,
        "binds the power button's interrupt to the core that the base sends it to",
    ),
    option(
        "noreplace-smp",
        "",
        Rule::Overridable,
        "on one core Linux would patch the lock prefixes out of its atomic operations, which must \
         also work against other kernels' cores in shared memory",
    ),
    option(
        "pci",
        "noearly",
        Rule::Combined,
        "keeps early quirks from accessing ports 0xcf8-0xcff, which the base uses",
    ),
    option(
        "reserve",
        CONFIG_PORTS,
        Rule::Fixed,
        "keeps drivers off the base's PCI configuration ports and serial ports (the kernel accepts \
         four ranges at most; for the fourth serial port see 8250.nr_uarts). A confined node has \
         configuration ports of its own: it is given the others",
    ),
    KernelOption {
        condition: Condition::WithoutSerialConsole,
        ..option(
            "8250.nr_uarts",
            "0",
            Rule::Overridable,
            "keeps the serial driver from probing ports, all of which belong to the base; also \
             saves the time",
        )
    },
    option(
        "nosgx",
        "",
        Rule::Overridable,
        "Linux clears the machine's whole enclave memory at boot, including the base's enclaves",
    ),
    option(
        "rdt",
        "!cmt,!mbmtotal,!mbmlocal,!l3cat,!l3cdp,!l2cat,!l2cdp,!mba",
        Rule::Overridable,
        "Linux resets the partitioning of shared caches and memory bandwidth at boot, including \
         the base's",
    ),
    option(
        "kvm.enable_virt_at_load",
        "0",
        Rule::Overridable,
        "from 6.12 on KVM would put every core into VMX operation when it is loaded, not only \
         while a guest runs; a core in VMX operation blocks the base's INIT",
    ),
    option(
        "cryptomgr.notests",
        "",
        Rule::Overridable,
        "skips the self-tests of ciphers, a good part of the boot time: the base has run them on \
         the same processors (ignored with fips=1)",
    ),
    KernelOption {
        condition: Condition::WithoutDevices,
        ..option(
            "swiotlb",
            "noforce",
            Rule::Overridable,
            "a node with memory above 4 GiB would reserve 64 MiB of bounce buffers for devices \
             that cannot address all of it; it has no such devices",
        )
    },
    option(
        "reboot",
        "a",
        Rule::Fixed,
        "until the tboot page is in use, reboot by the ACPI reset register, a byte that the base \
         polls: all other methods reset the whole machine",
    ),
    option(
        "panic",
        "0",
        Rule::Handled,
        "halt after a panic, so that the log can be read, and so that no reboot is tried before \
         there is a method that does not affect the machine",
    ),
    option(
        "crash_kexec_post_notifiers",
        "",
        Rule::Overridable,
        "a panic stops the node's other cores by an NMI, which saves their registers for a dump; \
         afterwards they ignore the base's NMI",
    ),
    option(
        "sysctl.kernel.kexec_load_disabled",
        "1",
        Rule::Fixed,
        "a kernel started by kexec would lack all these options, and the base would still read the \
         log of the previous one",
    ),
];

/// The options that a user cannot set for a node.
pub const REFUSED: &[RefusedOption] = &[
    RefusedOption {
        name: "acpi",
        why: "can disable the tables that describe the node's part of the machine",
    },
    RefusedOption {
        name: "acpi_rsdp",
        why: "replaces the tables that describe the node's part of the machine",
    },
    RefusedOption {
        name: "memmap",
        why: "can add memory that does not belong to the node",
    },
];
