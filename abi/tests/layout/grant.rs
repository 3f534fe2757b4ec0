//! Layout of `insula_grant.h`, and of grants in `insula.h`, as the Rust mirror has it.

use insula_abi::grant::{
    self, GrantAdd, GrantImport, GrantKind, GrantMessage, GrantRevoke, GrantTable,
};
use insula_abi::ioctl;

use super::{Facts, structure, values};

pub(crate) fn structures() -> Facts {
    let mut facts = Facts::new();
    structure!(
        facts,
        GrantMessage,
        "insula_grant_message",
        [start, size, table, sequence, flags, reserved]
    );
    structure!(facts, GrantTable, "insula_grant_table", [id, timeout_ms]);
    structure!(
        facts,
        GrantAdd,
        "insula_grant_add",
        [address, size, pages, capacity, flags]
    );
    structure!(facts, GrantRevoke, "insula_grant_revoke", [address, size]);
    structure!(facts, GrantImport, "insula_grant_import", [table, reserved]);
    facts
}

pub(crate) fn constants() -> Facts {
    let mut facts = Facts::new();
    values!(facts, {
        INSULA_GRANT_WRITABLE = grant::GRANT_WRITABLE,
        INSULA_GRANT_RUNS_MAX = grant::GRANT_RUNS_MAX,
        INSULA_GRANT_TIMEOUT_MIN_MS = grant::GRANT_TIMEOUT_MIN_MS,
        INSULA_GRANT_TIMEOUT_MAX_MS = grant::GRANT_TIMEOUT_MAX_MS,
        INSULA_NODE_GRANT_TABLE = ioctl::NODE_GRANT_TABLE,
        INSULA_GRANT_ADD = ioctl::GRANT_ADD,
        INSULA_GRANT_REVOKE = ioctl::GRANT_REVOKE,
        INSULA_GRANT_IMPORT = ioctl::GRANT_IMPORT,
    });
    facts
}

pub(crate) fn enumerators() -> Facts {
    let mut facts = Facts::new();
    values!(facts, {
        INSULA_GRANT_GRANTED = GrantKind::GRANTED.0,
        INSULA_GRANT_REVOKING = GrantKind::REVOKING.0,
        INSULA_GRANT_REVOKED = GrantKind::REVOKED.0,
    });
    facts
}
