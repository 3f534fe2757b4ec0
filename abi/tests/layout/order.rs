//! What `insula_order.h` says, by Rust.

use insula_abi::order::{Answer, Order, OrderKind};

use super::{Facts, structure, values};

pub(crate) fn structures() -> Facts {
    let mut facts = Facts::new();
    structure!(
        facts,
        Order,
        "insula_order",
        [apic_id, reserved, start, size]
    );
    structure!(
        facts,
        Answer,
        "insula_answer",
        [error, reserved, memory_block]
    );
    facts
}

pub(crate) fn enumerators() -> Facts {
    let mut facts = Facts::new();
    values!(facts, {
        INSULA_ORDER_ABOUT = OrderKind::ABOUT.0,
        INSULA_ORDER_CPU_ON = OrderKind::CPU_ON.0,
        INSULA_ORDER_CPU_OFF = OrderKind::CPU_OFF.0,
        INSULA_ORDER_MEMORY_ADD = OrderKind::MEMORY_ADD.0,
        INSULA_ORDER_MEMORY_REMOVE = OrderKind::MEMORY_REMOVE.0,
    });
    facts
}
