//! Layout of `insula_monitor.h` as the Rust mirror has it.

use insula_abi::monitor::{
    self, Message, Monitor, MonitorCore, MonitorEnd, MonitorExit, MonitorFunction, MonitorShare,
    MonitorState, NodeConfine, Violation,
};

use super::{Facts, structure, values};

pub(crate) fn structures() -> Facts {
    let mut facts = Facts::new();
    structure!(
        facts,
        Violation,
        "insula_violation",
        [subject, value, rip, page_table]
    );
    structure!(
        facts,
        Monitor,
        "insula_monitor",
        [
            magic,
            revision,
            cores_count,
            cores,
            nested_page_table,
            nested_changes,
            entry,
            page_table,
            argument,
            ended,
            ended_core,
            violation,
            functions,
            functions_count,
            reserved,
            message,
            doorbells,
            page_doorbell,
            goes_on,
            tsc_offset,
            interrupt
        ]
    );
    structure!(
        facts,
        MonitorFunction,
        "insula_monitor_function",
        [address, messages_count, messages, config, writable]
    );
    structure!(
        facts,
        Message,
        "insula_message",
        [address, address_high, data, control]
    );
    structure!(
        facts,
        MonitorCore,
        "insula_monitor_core",
        [
            apic_id,
            index,
            header,
            owned,
            running,
            requests,
            flushes,
            exits,
            dropped,
            paused,
            registers,
            guest_apic_id,
            page_request,
            share
        ]
    );
    structure!(
        facts,
        MonitorShare,
        "insula_monitor_share",
        [
            open, entry, page_table, argument, page, period, budget, doorbell, armed, wake_at,
            entered, runs, entries, fault
        ]
    );
    structure!(
        facts,
        MonitorState,
        "insula_monitor_state",
        [magic, tsc, running, in_service]
    );
    structure!(
        facts,
        NodeConfine,
        "insula_node_confine",
        [memory, flags, header, entry, page_table, argument]
    );
    facts
}

pub(crate) fn constants() -> Facts {
    let mut facts = Facts::new();
    values!(facts, {
        INSULA_MONITOR_MAGIC = monitor::MONITOR_MAGIC,
        INSULA_MONITOR_REVISION = monitor::MONITOR_REVISION,
        INSULA_MONITOR_CORE_SIZE = monitor::MONITOR_CORE_SIZE,
        INSULA_FUNCTION_CONFIG_WORDS = monitor::FUNCTION_CONFIG_WORDS,
        INSULA_FUNCTION_MESSAGES = monitor::FUNCTION_MESSAGES,
        INSULA_MONITOR_FUNCTIONS = monitor::MONITOR_FUNCTIONS,
        INSULA_MONITOR_STATE_MAGIC = monitor::MONITOR_STATE_MAGIC,
        INSULA_MONITOR_STATE = monitor::MONITOR_STATE,
        INSULA_MONITOR_STATE_SIZE = monitor::MONITOR_STATE_SIZE,
        INSULA_MONITOR_SHARED = monitor::MONITOR_SHARED,
        INSULA_MONITOR_SHARED_CODE = monitor::MONITOR_SHARED_CODE,
        INSULA_PAGE_WANTED = monitor::PAGE_WANTED,
        INSULA_PAGE_NO_MEMORY = monitor::PAGE_NO_MEMORY,
        INSULA_PAGE_FOREIGN = monitor::PAGE_FOREIGN,
        INSULA_MONITOR_MESSAGE = monitor::MONITOR_MESSAGE,
        INSULA_MONITOR_DOORBELLS = monitor::MONITOR_DOORBELLS,
        INSULA_MONITOR_REGISTERS = monitor::MONITOR_REGISTERS,
        INSULA_MONITOR_REQUEST_INIT = monitor::REQUEST_INIT,
        INSULA_MONITOR_REQUEST_STARTUP = monitor::REQUEST_STARTUP,
        INSULA_MONITOR_REQUEST_NMI = monitor::REQUEST_NMI,
        INSULA_MONITOR_REQUEST_FLUSH = monitor::REQUEST_FLUSH,
        INSULA_MONITOR_REQUEST_STOP = monitor::REQUEST_STOP,
        INSULA_MONITOR_REQUEST_PAUSE = monitor::REQUEST_PAUSE,
        INSULA_MONITOR_REQUEST_RESUME = monitor::REQUEST_RESUME,
        INSULA_MONITOR_REQUEST_SHARE = monitor::REQUEST_SHARE,
        INSULA_MONITOR_STARTUP_SHIFT = monitor::STARTUP_SHIFT,
    });
    facts
}

pub(crate) fn enumerators() -> Facts {
    let mut facts = Facts::new();
    values!(facts, {
        INSULA_MONITOR_RUNS = MonitorEnd::RUNS.0,
        INSULA_MONITOR_RESET = MonitorEnd::RESET.0,
        INSULA_MONITOR_MEMORY = MonitorEnd::MEMORY.0,
        INSULA_MONITOR_PORT = MonitorEnd::PORT.0,
        INSULA_MONITOR_MSR = MonitorEnd::MSR.0,
        INSULA_MONITOR_INTERRUPT = MonitorEnd::INTERRUPT.0,
        INSULA_MONITOR_INSTRUCTION = MonitorEnd::INSTRUCTION.0,
        INSULA_MONITOR_FAILED = MonitorEnd::FAILED.0,
        INSULA_MONITOR_NO_MEMORY = MonitorEnd::NO_MEMORY.0,
        INSULA_EXIT_NMI = MonitorExit::NMI.0,
        INSULA_EXIT_MSR = MonitorExit::MSR.0,
        INSULA_EXIT_ICR = MonitorExit::ICR.0,
        INSULA_EXIT_PORT = MonitorExit::PORT.0,
        INSULA_EXIT_CPUID = MonitorExit::CPUID.0,
        INSULA_EXIT_MEMORY = MonitorExit::MEMORY.0,
        INSULA_EXIT_OTHER = MonitorExit::OTHER.0,
        INSULA_EXITS = monitor::EXITS,
    });
    facts
}
