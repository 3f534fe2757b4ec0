//! Layout of `insula_pci.h` as the Rust mirror has it.

use insula_abi::pci as rust;
use insula_abi::pci::{PciFunction, PciMemory};

use super::{Facts, structure, values};

pub(crate) fn structures() -> Facts {
    let mut facts = Facts::new();
    structure!(
        facts,
        PciFunction,
        "insula_pci_function",
        [address, vendor, device, class_code, owner, bars]
    );
    structure!(
        facts,
        PciMemory,
        "insula_pci_memory",
        [size, start, device_address]
    );
    facts
}

pub(crate) fn constants() -> Facts {
    let mut facts = Facts::new();
    values!(facts, {
        INSULA_SYS_PCI_LIST = rust::SYS_PCI_LIST,
        INSULA_SYS_PCI_CLAIM = rust::SYS_PCI_CLAIM,
        INSULA_SYS_PCI_RELEASE = rust::SYS_PCI_RELEASE,
        INSULA_SYS_PCI_ENABLE = rust::SYS_PCI_ENABLE,
        INSULA_SYS_PCI_READ = rust::SYS_PCI_READ,
        INSULA_SYS_PCI_MAP = rust::SYS_PCI_MAP,
        INSULA_SYS_PCI_ALLOCATE = rust::SYS_PCI_ALLOCATE,
        INSULA_SYS_PCI_INTERRUPT = rust::SYS_PCI_INTERRUPT,
        INSULA_PCI_BARS = rust::PCI_BARS,
        INSULA_PCI_DECODE = rust::PCI_DECODE,
        INSULA_PCI_DMA = rust::PCI_DMA,
        INSULA_PCI_BLOCK_MAX = rust::PCI_BLOCK_MAX,
        INSULA_PCI_MEMORY_MAX = rust::PCI_MEMORY_MAX,
        INSULA_PCI_MAPPINGS_MAX = rust::PCI_MAPPINGS_MAX,
        INSULA_PCI_MESSAGES_MAX = rust::PCI_MESSAGES_MAX,
        INSULA_PCI_INTERRUPTS_MAX = rust::PCI_INTERRUPTS_MAX,
        INSULA_PCI_NO_ENDPOINT = rust::PCI_NO_ENDPOINT.cast_signed(),
        INSULA_PCI_INTERRUPTED = rust::PCI_INTERRUPTED,
    });
    facts
}
