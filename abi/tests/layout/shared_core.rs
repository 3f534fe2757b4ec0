//! Layout of `insula_shared_core.h` as the Rust mirror has it.

use insula_abi::shared_core as rust;
use insula_abi::shared_core::SharedCore;

use super::{Facts, structure, values};

pub(crate) fn structures() -> Facts {
    let mut facts = Facts::new();
    structure!(
        facts,
        SharedCore,
        "insula_shared_core",
        [
            magic,
            revision,
            vector,
            leave,
            code,
            code_frame,
            frame,
            directory,
            armed,
            abandon,
            pending,
            taken,
            nmis,
            reason,
            deadline,
            interrupts_off,
            virtual_vector
        ]
    );
    facts
}

pub(crate) fn constants() -> Facts {
    let mut facts = Facts::new();
    values!(facts, {
        INSULA_SHARED_CORE_MAGIC = rust::SHARED_CORE_MAGIC,
        INSULA_SHARED_CORE_REVISION = rust::SHARED_CORE_REVISION,
        INSULA_LEAVE_IDLE = rust::LEAVE_IDLE,
        INSULA_LEAVE_INTERRUPTED = rust::LEAVE_INTERRUPTED,
        INSULA_LEAVE_DEADLINE = rust::LEAVE_DEADLINE,
        INSULA_LEAVE_ENDED = rust::LEAVE_ENDED,
    });
    facts
}
