//! The kernels that distributions ship, where the testbed has fetched them (`build/kernels/*/boot/vmlinuz-*`).

mod fetched;

use kimage::log::LogLayout;
use kimage::{Btf, Format, Symbols, inspect, vmlinux};
use std::path::Path;

#[test]
fn everything_can_be_known_of_them() {
    for path in fetched::kernels() {
        println!("{}", path.display());
        check(&path);
    }
}

fn check(path: &Path) {
    let file = std::fs::read(path).unwrap();
    let release = path
        .file_name()
        .unwrap()
        .to_string_lossy()
        .replace("vmlinuz-", "");
    let packed = inspect(&file).unwrap();
    assert_eq!(
        (packed.format, &packed.release),
        (Format::BzImage, &release)
    );
    assert!(packed.segments[0].size < packed.footprint);

    let elf = vmlinux(&file).unwrap();
    let unpacked = inspect(&elf).unwrap();
    assert_eq!(
        (unpacked.format, &unpacked.release),
        (Format::Elf, &release)
    );
    assert_eq!(unpacked.alignment, packed.alignment);
    assert!(unpacked.footprint <= packed.footprint);

    let symbols = Symbols::from_vmlinux(&elf).unwrap();
    assert!(symbols.iter().count() > 50_000);
    let text = symbols.address("_text").unwrap();
    assert_eq!(
        symbols.address("startup_64"),
        Some(text + unpacked.entry_offset)
    );
    assert!(symbols.address("_end").unwrap() - text <= unpacked.footprint);

    let btf = Btf::from_vmlinux(&elf).unwrap();
    assert_eq!(btf.offset_of("list_head", "prev"), Ok(8));
    assert_eq!(
        btf.offset_of("page", "lru.next"),
        btf.offset_of("page", "compound_head")
    );
    assert!(btf.offset_of("task_struct", "comm").unwrap() < btf.size_of("task_struct").unwrap());
    LogLayout::from_vmlinux(&elf).unwrap();
}
