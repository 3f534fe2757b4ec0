//! What `insula_lwk.h` says, by Rust.

use insula_abi::ioctl;
use insula_abi::lwk::{
    self, Calls, Clock, Counters, Delegation, DelegationPlace, Desk, Process, Reach, Signal,
    SpaceBegin, SpaceCreate, SpaceFork, SpaceRange, SpaceSignal,
};

use super::{Facts, structure, values};

pub(crate) fn structures() -> Facts {
    let mut facts = Facts::new();
    structure!(
        facts,
        Clock,
        "insula_lwk_clock",
        [
            sequence,
            tsc,
            realtime_ns,
            monotonic_ns,
            mult,
            fraction,
            reserved
        ]
    );
    structure!(
        facts,
        Delegation,
        "insula_lwk_delegation",
        [
            magic,
            revision,
            pages,
            base_doorbell,
            base_reserved,
            clock,
            lwk_doorbell,
            lwk_reserved,
            rung,
            interrupted,
            attention,
            process_of
        ]
    );
    structure!(
        facts,
        Counters,
        "insula_lwk_counters",
        [
            local_calls,
            delegated_calls,
            faults,
            questions,
            requests,
            entries,
            switches,
            rings
        ]
    );
    structure!(
        facts,
        Process,
        "insula_lwk_process",
        [
            base_state,
            desk,
            pid,
            space_start,
            space_end,
            arguments_size,
            released,
            descriptor,
            signals,
            parent,
            desks,
            ignored,
            blocked,
            told,
            stopped,
            base_reserved,
            lwk_state,
            page_table,
            taken,
            lwk_reserved,
            queue,
            pinned_count,
            pinned_reserved,
            pinned
        ]
    );
    structure!(
        facts,
        Signal,
        "insula_lwk_signal",
        [signal, error, code, thread, fields]
    );
    structure!(
        facts,
        SpaceSignal,
        "insula_space_signal",
        [signal, error, code, padding, fields]
    );
    structure!(facts, Calls, "insula_lwk_calls", [made]);
    structure!(facts, Reach, "insula_lwk_reach", [windows]);
    structure!(
        facts,
        Desk,
        "insula_lwk_desk",
        [
            turn,
            number,
            arguments,
            answer_turn,
            kind,
            result,
            value,
            answer_reserved,
            base_asleep,
            base_reserved,
            lwk_asleep,
            scratch
        ]
    );
    structure!(
        facts,
        DelegationPlace,
        "insula_delegation",
        [start, pages, reserved]
    );
    structure!(
        facts,
        SpaceCreate,
        "insula_space_create",
        [start, end, desk, flags]
    );
    structure!(
        facts,
        SpaceBegin,
        "insula_space_begin",
        [arguments_size, descriptor, desks, ignored, blocked]
    );
    structure!(facts, SpaceFork, "insula_space_fork", [desk, process]);
    structure!(
        facts,
        SpaceRange,
        "insula_space_range",
        [start, size, ticket, flags]
    );
    facts
}

pub(crate) fn constants() -> Facts {
    let mut facts = Facts::new();
    values!(facts, {
        INSULA_LWK_MAGIC = lwk::LWK_MAGIC,
        INSULA_LWK_REVISION = lwk::LWK_REVISION,
        INSULA_LWK_PAGES_MIN = lwk::PAGES_MIN,
        INSULA_LWK_PAGES_MAX = lwk::PAGES_MAX,
        INSULA_LWK_DESKS_PER_PAGE = lwk::DESKS_PER_PAGE,
        INSULA_LWK_COUNTERS_PAGES = lwk::COUNTERS_PAGES,
        INSULA_LWK_PINNED_MAX = lwk::PINNED_MAX,
        INSULA_LWK_REACH_SHIFT = lwk::REACH_SHIFT,
        INSULA_LWK_QUEUE = lwk::QUEUE,
        INSULA_LWK_RESULT = lwk::ANSWER_RESULT,
        INSULA_LWK_FAULT = lwk::ANSWER_FAULT,
        INSULA_LWK_REQUEST = lwk::request::REQUEST,
        INSULA_LWK_RESOLVED = lwk::request::RESOLVED,
        INSULA_LWK_ARGUMENTS = lwk::request::ARGUMENTS,
        INSULA_LWK_THREAD = lwk::request::THREAD,
        INSULA_LWK_THREAD_END = lwk::request::THREAD_END,
        INSULA_LWK_EXIT = lwk::request::EXIT,
        INSULA_LWK_RELEASE = lwk::request::RELEASE,
        INSULA_LWK_FORK = lwk::request::FORK,
        INSULA_LWK_RELEASE_MAPPED = lwk::RELEASE_MAPPED,
        INSULA_SPACE_DESKS = lwk::SPACE_DESKS,
        INSULA_SPACE_INTERRUPT = lwk::SPACE_INTERRUPT,
        INSULA_SPACE_CREATE = ioctl::SPACE_CREATE,
        INSULA_SPACE_BEGIN = ioctl::SPACE_BEGIN,
        INSULA_SPACE_DESK = ioctl::SPACE_DESK,
        INSULA_SPACE_SIT = ioctl::SPACE_SIT,
        INSULA_SPACE_LEAVE = ioctl::SPACE_LEAVE,
        INSULA_SPACE_WAIT = ioctl::SPACE_WAIT,
        INSULA_SPACE_RING = ioctl::SPACE_RING,
        INSULA_SPACE_SIGNAL = ioctl::SPACE_SIGNAL,
        INSULA_SPACE_RELEASE = ioctl::SPACE_RELEASE,
        INSULA_SPACE_FORK = ioctl::SPACE_FORK,
        INSULA_SPACE_ADOPT = ioctl::SPACE_ADOPT,
    });
    facts
}

pub(crate) fn enumerators() -> Facts {
    let mut facts = Facts::new();
    values!(facts, {
        INSULA_LWK_NONE = lwk::base_state::NONE,
        INSULA_LWK_BEGUN = lwk::base_state::BEGUN,
        INSULA_LWK_ENDED = lwk::base_state::ENDED,
        INSULA_LWK_GONE = lwk::base_state::GONE,
        INSULA_LWK_UNKNOWN = lwk::process_state::UNKNOWN,
        INSULA_LWK_ALIVE = lwk::process_state::ALIVE,
        INSULA_LWK_DONE = lwk::process_state::DONE,
    });
    facts
}
