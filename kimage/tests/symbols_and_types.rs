//! A kernel image's symbols and types.

mod synthetic;

use kimage::{Btf, BtfError, LookupError, SymbolError, Symbols};
use proptest::prelude::*;
use synthetic::btf::{Builder, log_types};
use synthetic::image;
use synthetic::kallsyms::{ORDERS, Order};

#[test]
fn symbols_are_read_in_every_order_of_tables() {
    for order in ORDERS {
        let symbols = Symbols::from_vmlinux(&image::vmlinux(order)).unwrap();
        let found: Vec<_> = symbols
            .iter()
            .map(|symbol| (symbol.address, symbol.kind, symbol.name.to_owned()))
            .collect();
        assert_eq!(found, image::symbols_of(order), "{order:?}");
        for (address, _, name) in image::symbols_of(order) {
            assert_eq!(symbols.address(&name), Some(address), "{order:?}");
        }
        for name in ["", "prb ", "printk_rb", "zzz"] {
            assert_eq!(symbols.address(name), None);
        }
    }
}

#[test]
fn tables_may_lie_anywhere() {
    for order in ORDERS {
        let mut file = image::vmlinux(order);
        let tables = image::TEXT_OFFSET + 0x200;
        let size = image::TEXT_SIZE - 0x200 - 0x800;
        file.copy_within(tables..tables + size, tables + 0x7f8);
        file[tables..tables + 0x7f8].fill(0xff);
        // Addresses relative to themselves move with the table.
        let moved = if order == Order::OwnPlace { 0x7f8 } else { 0 };
        assert_eq!(
            Symbols::from_vmlinux(&file).unwrap().address("prb"),
            Some(image::PRB + moved),
            "{order:?}"
        );
    }
}

#[test]
fn kernel_without_tables_is_refused() {
    let mut file = image::vmlinux(Order::New);
    file[image::TEXT_OFFSET + 0x200..image::TEXT_OFFSET + image::TEXT_SIZE].fill(0);
    assert!(matches!(
        Symbols::from_vmlinux(&file),
        Err(SymbolError::NoTable)
    ));
    assert!(matches!(
        Symbols::from_vmlinux(b"no kernel"),
        Err(SymbolError::Image(_))
    ));
}

#[test]
fn types_of_the_log_have_the_kernels_layout() {
    let btf = Btf::from_vmlinux(&image::vmlinux(Order::New)).unwrap();
    assert_eq!(btf.size_of("printk_info"), Ok(88));
    assert_eq!(btf.size_of("atomic_long_t"), Ok(8));
    assert_eq!(
        btf.offset_of("printk_ringbuffer", "text_data_ring.data"),
        Ok(56)
    );
    assert_eq!(btf.offset_of("prb_desc", "text_blk_lpos.next"), Ok(16));
    assert_eq!(btf.offset_of("prb_desc", "state_var.counter"), Ok(0));
    let level = btf.field("printk_info", "level").unwrap();
    assert_eq!((level.bit_offset, level.bit_size), (157, 3));
    assert!(matches!(
        btf.offset_of("printk_info", "level"),
        Err(LookupError::BitField { .. })
    ));
    assert!(matches!(
        btf.offset_of("printk_info", "unknown"),
        Err(LookupError::NoMember { .. })
    ));
    assert!(matches!(
        btf.offset_of("printk_info", "seq.x"),
        Err(LookupError::NoMember { .. })
    ));
    assert!(matches!(
        btf.size_of("unknown"),
        Err(LookupError::NoType(_))
    ));
    assert!(matches!(btf.size_of(""), Err(LookupError::NoType(_))));
}

#[test]
fn members_of_anonymous_types_are_members_of_the_enclosing_type() {
    let mut btf = Builder::default();
    let int = btf.integer("int", 4);
    let array = btf.array(int, 5);
    let list = btf.structure("", 8, &[("next", int, 0, 0), ("previous", int, 32, 0)]);
    let either = btf.union("", 8, &[("", list, 0, 0), ("word", int, 0, 0)]);
    let constant = btf.constant(either);
    let page = btf.structure(
        "page",
        40,
        &[
            ("flags", int, 0, 0),
            ("", constant, 64, 0),
            ("many", array, 128, 0),
        ],
    );
    let name = btf.typedef("page_t", page);
    btf.structure("outer", 48, &[("page", name, 64, 0)]);
    let btf = Btf::parse(&btf.section()).unwrap();
    assert_eq!(btf.offset_of("page", "previous"), Ok(12));
    assert_eq!(btf.offset_of("page_t", "word"), Ok(8));
    assert_eq!(btf.offset_of("outer", "page.previous"), Ok(20));
    assert_eq!(btf.field("page", "many").unwrap().bit_size, 160);
}

#[test]
fn recursive_types_end() {
    let mut btf = Builder::default();
    // 1 contains 2, 2 contains 1; 3 and 4 are names for each other; 5 is an array of itself.
    btf.structure("a", 8, &[("", 2, 0, 0), ("", 2, 0, 0)]);
    btf.structure("", 8, &[("", 1, 0, 0), ("", 1, 0, 0)]);
    btf.typedef("b", 4);
    btf.typedef("c", 3);
    btf.array(5, u32::MAX);
    btf.structure("d", 8, &[("endless", 5, 0, 0), ("name", 3, 0, 0)]);
    let btf = Btf::parse(&btf.section()).unwrap();
    assert!(btf.offset_of("a", "x").is_err());
    assert!(btf.size_of("b").is_err());
    assert!(btf.offset_of("d", "endless").is_err());
    assert!(btf.offset_of("d", "name.x").is_err());
}

#[test]
fn damaged_type_information_is_refused() {
    let section = log_types();
    assert!(matches!(Btf::parse(b""), Err(BtfError::Malformed(_))));
    assert!(matches!(
        Btf::parse(&section[..section.len() - 1]),
        Err(BtfError::Malformed(_))
    ));
    let mut newer = section.clone();
    newer[2] = 2;
    assert!(matches!(Btf::parse(&newer), Err(BtfError::Malformed(_))));
    let mut unknown = section;
    unknown[24 + 7] = 0x1f;
    assert!(matches!(Btf::parse(&unknown), Err(BtfError::Malformed(_))));
}

proptest! {
    #[test]
    fn any_type_information_ends(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let mut section = log_types();
        let at = 24 + bytes.len() % 200;
        for (place, byte) in section[at..].iter_mut().zip(&bytes) {
            *place = *byte;
        }
        if let Ok(btf) = Btf::parse(&section) {
            let _ = btf.field("printk_info", "level");
            let _ = btf.offset_of("printk_ringbuffer", "desc_ring.tail_id");
            let _ = btf.size_of("atomic_long_t");
        }
    }
}
