//! Tests with the sysfs of fake machines.

use insula_base::error::Error;
use insula_boot::Configuration;

use super::fake::{Machine, PORT};
use super::*;

impl Machine {
    /// Adds a disk of the first function.
    fn disk(&self, name: &str) {
        let path = format!("{PORT}/0000:01:00.0/nvme/nvme0/{name}");
        self.add(&format!("{path}/dev"), "259:1\n");
        self.add(&format!("{path}/holders/.keep"), "");
        std::fs::remove_file(self.root().path(&format!("{path}/holders/.keep"))).unwrap();
        self.link(&format!("/sys/class/block/{name}"), &path);
    }

    /// Adds a network interface of a function.
    fn interface(&self, name: &str, function: &str) {
        let path = format!("{PORT}/{function}/net/{name}");
        self.add(&format!("{path}/operstate"), "up\n");
        self.link(&format!("{path}/device"), &format!("{PORT}/{function}"));
        self.link(&format!("/sys/class/net/{name}"), &path);
    }

    fn select(&self, addresses: &[&str]) -> Result<Vec<Selected>, Error> {
        let addresses: Vec<_> = addresses.iter().map(|text| text.parse().unwrap()).collect();
        select(&self.root(), &addresses, Isolation::Direct, false)
    }

    fn refusal(&self, address: &str) -> String {
        self.select(&[address]).unwrap_err().to_string()
    }
}

#[test]
fn a_function_behind_a_port_is_described() {
    let selected = Machine::new().select(&["0000:01:00.0"]).unwrap();
    let bus = selected[0].bus();
    assert_eq!(
        (bus.segment, bus.number, bus.configuration),
        (0, 1, Configuration::Memory { ecam: 0xb000_0000 })
    );
    assert_eq!(
        (bus.windows[0].start, bus.windows[0].size),
        (0xfe80_0000, 0x4000)
    );
    assert_eq!(bus.ports, [0xc000..=0xc01f]);
}

#[test]
fn unsuitable_functions_are_refused() {
    let machine = Machine::new();
    assert!(
        machine
            .refusal("0000:05:00.0")
            .contains("there is no PCI function 0000:05:00.0")
    );
    assert!(machine.refusal("0000:00:03.0").contains("is a bridge"));
    let twice = machine.select(&["0000:01:00.0", "01:00.0"]).unwrap_err();
    assert!(twice.to_string().contains("given twice"));

    machine.function(&format!("{PORT}/0000:01:00.1"), "0000:01:00.1", "0x010802");
    let shared = machine.refusal("0000:01:00.0");
    assert!(
        shared.contains("not alone on its bus: 0000:01:00.1 is there as well"),
        "{shared}"
    );

    machine.function(
        "/sys/devices/pci0000:00/0000:00:1f.2",
        "0000:00:1f.2",
        "0x010601",
    );
    assert!(machine.refusal("0000:00:1f.2").contains("root bus"));

    machine.add(&format!("{PORT}/0000:02:00.0/reset_method"), "flr bus\n");
    assert!(machine.select(&["0000:02:00.0"]).is_ok());
    machine.add(&format!("{PORT}/0000:02:00.0/reset_method"), "");
    assert!(machine.refusal("0000:02:00.0").contains("cannot be reset"));
    machine.add(&format!("{PORT}/0000:02:00.0/reset_method"), "bus\n");
    std::fs::remove_file(machine.root().path(&format!("{PORT}/0000:02:00.0/reset"))).unwrap();
    assert!(machine.refusal("0000:02:00.0").contains("cannot be reset"));
    machine.add("/proc/interrupts", " 24: 0 IR-PCI-MSI 0-edge nvme\n");
    assert!(machine.refusal("0000:02:00.0").contains("intremap=off"));
    std::fs::write(
        machine.root().path(&format!("{PORT}/0000:02:00.0/config")),
        [0; 256],
    )
    .unwrap();
    assert!(machine.refusal("0000:02:00.0").contains("MSI"));
}

#[test]
fn a_confined_node_needs_an_iommu_that_remaps_interrupts() {
    let machine = Machine::new();
    let select = || {
        let address = "0000:01:00.0".parse().unwrap();
        select(&machine.root(), &[address], Isolation::Vmm, false)
    };
    let refusal = || select().unwrap_err().to_string();
    assert!(refusal().contains("does not remap interrupts"));
    machine.add("/proc/interrupts", " 24: 0 IR-PCI-MSI 0-edge nvme\n");
    assert!(refusal().contains("no IOMMU is in use for it"));
    machine.add(&format!("{PORT}/0000:01:00.0/iommu_group/type"), "DMA\n");
    let selected = select().unwrap();
    let bus = selected[0].bus();
    let Configuration::Ports(function) = bus.configuration else {
        panic!("{bus:?}");
    };
    assert_eq!(function.messages, 1);
    assert_eq!(function.message_table.start, 0xfe80_0000);
    assert!(bus.ports.is_empty(), "a confined node has no ports");
    // Without MSI-X.
    let mut config = vec![0; 256];
    (config[0x34], config[0x40]) = (0x40, 0x05);
    let path = format!("{PORT}/0000:01:00.0/config");
    std::fs::write(machine.root().path(&path), config).unwrap();
    assert!(refusal().contains("has no MSI-X"));
}

#[test]
fn an_attached_function_is_refused_but_described() {
    let machine = Machine::new();
    machine.take_disk();
    assert!(
        machine
            .refusal("0000:01:00.0")
            .contains("is already attached to a node")
    );
    let address = "0000:01:00.0".parse().unwrap();
    assert!(describe(&machine.root(), &[address], Isolation::Direct).is_ok());
}

#[test]
fn a_bus_without_ecam_is_refused() {
    let machine = Machine::new();
    machine.add("/sys/firmware/acpi/tables/MCFG", "");
    assert!(machine.refusal("0000:01:00.0").contains("MCFG"));
}

#[test]
fn a_disk_in_use_is_refused() {
    let machine = Machine::new();
    machine.disk("nvme0n1");
    assert!(machine.select(&["0000:01:00.0"]).is_ok());
    machine.add(
        "/proc/self/mountinfo",
        "22 1 259:1 / / rw - ext4 /dev/root rw\n",
    );
    machine.add(
        "/proc/swaps",
        "Filename Type\n/dev/nvme0n1 partition 1 0 -2\n",
    );
    machine.add(
        &format!("{PORT}/0000:01:00.0/nvme/nvme0/nvme0n1/holders/dm-0"),
        "",
    );
    let refusal = machine.refusal("0000:01:00.0");
    for part in [
        "nvme0n1 is mounted at /",
        "is swap space",
        "is part of dm-0",
        "--force-device",
    ] {
        assert!(refusal.contains(part), "{refusal}");
    }
    let address = "0000:01:00.0".parse().unwrap();
    assert!(select(&machine.root(), &[address], Isolation::Direct, true).is_ok());
    assert!(machine.select(&["0000:02:00.0"]).is_ok());
}

#[test]
fn a_disk_behind_several_controllers_belongs_to_each() {
    let machine = Machine::new();
    let subsystem = "/sys/devices/virtual/nvme-subsystem/nvme-subsys0";
    machine.add(&format!("{subsystem}/nvme0n1/dev"), "259:1\n");
    machine.add(&format!("{PORT}/0000:01:00.0/nvme/nvme0/model"), "x\n");
    machine.link(
        &format!("{subsystem}/nvme0"),
        &format!("{PORT}/0000:01:00.0/nvme/nvme0"),
    );
    machine.link("/sys/class/block/nvme0n1", &format!("{subsystem}/nvme0n1"));
    machine.add(
        "/proc/self/mountinfo",
        "22 1 259:1 / /home rw - ext4 /dev/nvme0n1 rw\n",
    );
    assert!(machine.refusal("0000:01:00.0").contains("mounted at /home"));
}

#[test]
fn the_only_network_interface_is_refused() {
    let machine = Machine::new();
    machine.interface("eth0", "0000:02:00.0");
    assert!(
        machine
            .refusal("0000:02:00.0")
            .contains("eth0 is the only connection to the network")
    );
    machine.interface("eth1", "0000:01:00.0");
    assert!(machine.select(&["0000:02:00.0"]).is_ok());
    assert!(machine.select(&["0000:01:00.0", "0000:02:00.0"]).is_err());

    let head = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n";
    let route = |interface: &str| {
        format!("{head}{interface} 00000000 0202000A 0003 0 0 0 00000000 0 0 0\n")
    };
    machine.add("/proc/net/route", &route("eth0"));
    assert!(machine.refusal("0000:02:00.0").contains("eth0"));
    machine.add("/proc/net/route", &route("eth1"));
    assert!(machine.select(&["0000:02:00.0"]).is_ok());
    machine.add("/proc/net/route", &route("br0"));
    machine.add(&format!("{PORT}/0000:02:00.0/net/eth0/upper_br0/x"), "");
    assert!(machine.refusal("0000:02:00.0").contains("eth0"));
}

#[test]
fn functions_are_listed_with_their_obstacles() {
    let machine = Machine::new();
    machine.function(
        "/sys/devices/pci0000:00/0000:00:1f.2",
        "0000:00:1f.2",
        "0x010601",
    );
    let views = all(&machine.root(), |address| {
        (address.bus == 2).then(|| "web".to_owned())
    });
    let short: Vec<_> = views
        .iter()
        .map(|view| {
            (
                view.address.to_string(),
                view.kind,
                view.node.as_deref(),
                view.obstacle.as_deref(),
            )
        })
        .collect();
    let expected = [
        (
            "0000:00:1f.2".to_owned(),
            "SATA",
            None,
            Some("on a root bus"),
        ),
        ("0000:01:00.0".to_owned(), "NVMe", None, None),
        ("0000:02:00.0".to_owned(), "Ethernet", Some("web"), None),
    ];
    assert_eq!(short, expected);
}
