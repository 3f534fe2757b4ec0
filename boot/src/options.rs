//! The kernel options that every node is given, each with its reason, and those that no node may be given.
//!
//! Source: the kernel's Documentation/admin-guide/kernel-parameters.txt. What is not here is as it is on any
//! machine: in particular the mitigations of processor flaws, KASLR and the console, of which a node has none (its
//! log is read from its memory).

/// What to do when the user sets the same option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// Refuse: the node would not work, or would disturb the machine.
    Ours,
    /// Leave ours out.
    Yields,
    /// Give both: the kernel adds up what it is told by this option.
    Joins,
    /// Give ours, and let the base do what the user's asks for.
    Heard,
}

/// When an option is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Given {
    /// To every node.
    Always,
    /// To a node with spare processors.
    WithSpares,
    /// To a node without devices of its own.
    WithoutDevices,
    /// To a node whose user names no console on a serial port.
    WithoutSerialConsole,
}

/// An option that nodes are given.
#[derive(Debug, Clone, Copy)]
pub struct KernelOption {
    /// Its name.
    pub name: &'static str,
    /// Its value; empty for an option that has none. [`TSC_KHZ`], [`PHANTOM`], [`CPUS`] and [`LISTED`] in
    /// it stand for what differs from node to node.
    pub value: &'static str,
    /// What to do when the user sets it too.
    pub rule: Rule,
    /// When it is given.
    pub given: Given,
    /// What it is for.
    pub why: &'static str,
}

/// Stands for the frequency of the machine's time stamp counter, in kHz.
pub const TSC_KHZ: &str = "<tsc-khz>";
/// Stands for the local APIC id that is listed without there being such a processor.
pub const PHANTOM: &str = "<phantom>";
/// Stands for the number of processors that the node starts with.
pub const CPUS: &str = "<cpus>";
/// Stands for the number of processors that the node starts with or may get later.
pub const LISTED: &str = "<cpus-and-spares>";

/// An option that a user may not set for a node.
#[derive(Debug, Clone, Copy)]
pub struct RefusedOption {
    /// Its name.
    pub name: &'static str,
    /// What it would do, as the end of a sentence that begins with "it".
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
        given: Given::Always,
        why,
    }
}

/// The options that nodes are given, in the order in which they stand on the command line.
pub const OPTIONS: &[KernelOption] = &[
    option(
        "tsc_early_khz",
        TSC_KHZ,
        Rule::Ours,
        "there is no timer that belongs to the node by which it could measure its time stamp counter",
    ),
    option(
        "tsc",
        "reliable",
        Rule::Yields,
        "nothing to check the counter against: without this it is declared unstable; also skips the check of each \
         further processor's counter while it starts",
    ),
    option(
        "no_ipi_broadcast",
        "1",
        Rule::Ours,
        "an interrupt to \"all but myself\" would reach the base's cores: on a panic it would freeze the base",
    ),
    option(
        "apic_extnmi",
        "none",
        Rule::Yields,
        "the machine's external NMI is the base's to handle",
    ),
    option(
        "disable_cpu_apicid",
        PHANTOM,
        Rule::Ours,
        "keeps kernels before 6.9 from starting the processor that is listed only for those from 6.9 on",
    ),
    KernelOption {
        given: Given::WithSpares,
        ..option(
            "maxcpus",
            CPUS,
            Rule::Ours,
            "spare processors are listed so that they can be brought online later, but are not the node's yet",
        )
    },
    option(
        "possible_cpus",
        LISTED,
        Rule::Yields,
        "kernels before 6.9 count the processor that is listed only for later ones among those that could be added",
    ),
    option(
        "memhp_default_state",
        "online",
        Rule::Yields,
        "memory that it is given while it runs is to be used at once",
    ),
    option(
        "memory_hotplug.online_policy",
        "auto-movable",
        Rule::Yields,
        "such memory is to be given back if it can be: in proportion to what the node began with, nothing is put \
         there that cannot be moved",
    ),
    option(
        "irqaffinity",
        "0",
        Rule::Ours,
        "binds the power button's interrupt to the core to which the base sends it",
    ),
    option(
        "noreplace-smp",
        "",
        Rule::Yields,
        "on one core Linux would take the lock prefixes out of its atomic operations, which must hold against other \
         kernels' cores in memory that it shares with them",
    ),
    option(
        "pci",
        "noearly",
        Rule::Joins,
        "keeps early quirks from looking for devices through ports 0xcf8-0xcff, which the base uses",
    ),
    option(
        "reserve",
        "0xcf8,8,0x3f8,8,0x3e8,8,0x2e8,8",
        Rule::Ours,
        "keeps drivers from the base's PCI configuration ports and serial ports (the kernel takes four ranges at \
         most; for the fourth serial port see 8250.nr_uarts)",
    ),
    KernelOption {
        given: Given::WithoutSerialConsole,
        ..option(
            "8250.nr_uarts",
            "0",
            Rule::Yields,
            "keeps the serial driver from looking for ports, all of which are the base's; saves the time as well",
        )
    },
    option(
        "nosgx",
        "",
        Rule::Yields,
        "Linux clears the machine's whole enclave memory when it boots, the base's enclaves with it",
    ),
    option(
        "rdt",
        "!cmt,!mbmtotal,!mbmlocal,!l3cat,!l3cdp,!l2cat,!l2cdp,!mba",
        Rule::Yields,
        "Linux resets the partitioning of shared caches and of memory bandwidth when it boots, the base's with it",
    ),
    option(
        "kvm.enable_virt_at_load",
        "0",
        Rule::Yields,
        "from 6.12 on KVM would put every core into VMX operation as soon as it is loaded, not only while a guest \
         runs; a core in it is deaf to the base's reset",
    ),
    option(
        "cryptomgr.notests",
        "",
        Rule::Yields,
        "no self-test of each cipher at boot, which is a good part of it: the base has made them on the same \
         processors (not obeyed with fips=1)",
    ),
    KernelOption {
        given: Given::WithoutDevices,
        ..option(
            "swiotlb",
            "noforce",
            Rule::Yields,
            "a node with memory on both sides of 4 GiB would set 64 MiB aside to bounce the DMA of devices that \
             cannot address all of it; it has none",
        )
    },
    option(
        "reboot",
        "a",
        Rule::Ours,
        "until the kernel can end by Trusted Boot's page, reboot by the ACPI reset register, a byte that the base watches: all other ways reset the whole machine",
    ),
    option(
        "panic",
        "0",
        Rule::Heard,
        "stay after a panic, so that the log can be read, and so that no reboot is tried before there is a way to \
         reboot that harms nobody",
    ),
    option(
        "crash_kexec_post_notifiers",
        "",
        Rule::Yields,
        "a panic stops the node's other cores by an NMI, which leaves their registers in memory for a dump, and \
         is then deaf to the base's own NMI",
    ),
    option(
        "sysctl.kernel.kexec_load_disabled",
        "1",
        Rule::Ours,
        "a kernel started by kexec would lack all these options, and the base would go on reading the log of the one \
         before",
    ),
];

/// The options that a user may not set for a node.
pub const REFUSED: &[RefusedOption] = &[
    RefusedOption {
        name: "acpi",
        why: "can turn off the tables by which the node knows its own part of the machine",
    },
    RefusedOption {
        name: "acpi_rsdp",
        why: "replaces the tables by which the node knows its own part of the machine",
    },
    RefusedOption {
        name: "memmap",
        why: "can give the node memory that is not its own",
    },
];
