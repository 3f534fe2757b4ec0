//! Encodings of the VMCS's fields, against those of the crate `x86`.

use insula_vmm::vmx::vmcs::field::*;
use insula_vmm::vmx::vmcs::segment;
use x86::vmx::vmcs::{control, guest, host, ro};

#[test]
fn encodings_are_those_of_others() {
    for (ours, theirs) in [
        (VPID, control::VPID),
        (GUEST_SELECTORS, guest::ES_SELECTOR),
        (HOST_ES_SELECTOR, host::ES_SELECTOR),
        (HOST_CS_SELECTOR, host::CS_SELECTOR),
        (HOST_SS_SELECTOR, host::SS_SELECTOR),
        (HOST_DS_SELECTOR, host::DS_SELECTOR),
        (HOST_FS_SELECTOR, host::FS_SELECTOR),
        (HOST_GS_SELECTOR, host::GS_SELECTOR),
        (HOST_TR_SELECTOR, host::TR_SELECTOR),
        (MSR_BITMAPS, control::MSR_BITMAPS_ADDR_FULL),
        (EPT_POINTER, control::EPTP_FULL),
        (XSS_EXITING_BITMAP, control::XSS_EXITING_BITMAP_FULL),
        (ENCLS_EXITING_BITMAP, control::ENCLS_EXITING_BITMAP_FULL),
        (GUEST_PHYSICAL_ADDRESS, ro::GUEST_PHYSICAL_ADDR_FULL),
        (VMCS_LINK_POINTER, guest::LINK_PTR_FULL),
        (GUEST_DEBUGCTL, guest::IA32_DEBUGCTL_FULL),
        (GUEST_PAT, guest::IA32_PAT_FULL),
        (GUEST_EFER, guest::IA32_EFER_FULL),
        (HOST_PAT, host::IA32_PAT_FULL),
        (HOST_EFER, host::IA32_EFER_FULL),
        (PIN_CONTROLS, control::PINBASED_EXEC_CONTROLS),
        (PRIMARY_CONTROLS, control::PRIMARY_PROCBASED_EXEC_CONTROLS),
        (EXCEPTION_BITMAP, control::EXCEPTION_BITMAP),
        (PAGE_FAULT_MASK, control::PAGE_FAULT_ERR_CODE_MASK),
        (PAGE_FAULT_MATCH, control::PAGE_FAULT_ERR_CODE_MATCH),
        (CR3_TARGET_COUNT, control::CR3_TARGET_COUNT),
        (EXIT_CONTROLS, control::VMEXIT_CONTROLS),
        (EXIT_MSR_STORE_COUNT, control::VMEXIT_MSR_STORE_COUNT),
        (EXIT_MSR_LOAD_COUNT, control::VMEXIT_MSR_LOAD_COUNT),
        (ENTRY_CONTROLS, control::VMENTRY_CONTROLS),
        (ENTRY_MSR_LOAD_COUNT, control::VMENTRY_MSR_LOAD_COUNT),
        (ENTRY_EVENT, control::VMENTRY_INTERRUPTION_INFO_FIELD),
        (ENTRY_ERROR_CODE, control::VMENTRY_EXCEPTION_ERR_CODE),
        (ENTRY_INSTRUCTION_LENGTH, control::VMENTRY_INSTRUCTION_LEN),
        (
            SECONDARY_CONTROLS,
            control::SECONDARY_PROCBASED_EXEC_CONTROLS,
        ),
        (INSTRUCTION_ERROR, ro::VM_INSTRUCTION_ERROR),
        (EXIT_REASON, ro::EXIT_REASON),
        (EXIT_EVENT, ro::VMEXIT_INTERRUPTION_INFO),
        (EXIT_ERROR_CODE, ro::VMEXIT_INTERRUPTION_ERR_CODE),
        (UNDELIVERED_EVENT, ro::IDT_VECTORING_INFO),
        (UNDELIVERED_ERROR_CODE, ro::IDT_VECTORING_ERR_CODE),
        (EXIT_INSTRUCTION_LENGTH, ro::VMEXIT_INSTRUCTION_LEN),
        (GUEST_SEGMENT_LIMITS, guest::ES_LIMIT),
        (GUEST_GDTR_LIMIT, guest::GDTR_LIMIT),
        (GUEST_IDTR_LIMIT, guest::IDTR_LIMIT),
        (GUEST_SEGMENT_ATTRIBUTES, guest::ES_ACCESS_RIGHTS),
        (GUEST_INTERRUPTIBILITY, guest::INTERRUPTIBILITY_STATE),
        (GUEST_ACTIVITY, guest::ACTIVITY_STATE),
        (GUEST_SYSENTER_CS, guest::IA32_SYSENTER_CS),
        (PREEMPTION_TIMER, guest::VMX_PREEMPTION_TIMER_VALUE),
        (HOST_SYSENTER_CS, host::IA32_SYSENTER_CS),
        (CR0_MASK, control::CR0_GUEST_HOST_MASK),
        (CR4_MASK, control::CR4_GUEST_HOST_MASK),
        (CR0_SHADOW, control::CR0_READ_SHADOW),
        (CR4_SHADOW, control::CR4_READ_SHADOW),
        (EXIT_QUALIFICATION, ro::EXIT_QUALIFICATION),
        (GUEST_CR0, guest::CR0),
        (GUEST_CR3, guest::CR3),
        (GUEST_CR4, guest::CR4),
        (GUEST_SEGMENT_BASES, guest::ES_BASE),
        (GUEST_GDTR_BASE, guest::GDTR_BASE),
        (GUEST_IDTR_BASE, guest::IDTR_BASE),
        (GUEST_DR7, guest::DR7),
        (GUEST_RSP, guest::RSP),
        (GUEST_RIP, guest::RIP),
        (GUEST_RFLAGS, guest::RFLAGS),
        (GUEST_PENDING_DEBUG, guest::PENDING_DBG_EXCEPTIONS),
        (GUEST_SYSENTER_ESP, guest::IA32_SYSENTER_ESP),
        (GUEST_SYSENTER_EIP, guest::IA32_SYSENTER_EIP),
        (HOST_CR0, host::CR0),
        (HOST_CR3, host::CR3),
        (HOST_CR4, host::CR4),
        (HOST_FS_BASE, host::FS_BASE),
        (HOST_GS_BASE, host::GS_BASE),
        (HOST_TR_BASE, host::TR_BASE),
        (HOST_GDTR_BASE, host::GDTR_BASE),
        (HOST_IDTR_BASE, host::IDTR_BASE),
        (HOST_SYSENTER_ESP, host::IA32_SYSENTER_ESP),
        (HOST_SYSENTER_EIP, host::IA32_SYSENTER_EIP),
        (GUEST_SELECTORS + segment::CS, guest::CS_SELECTOR),
        (GUEST_SELECTORS + segment::TR, guest::TR_SELECTOR),
        (GUEST_SEGMENT_LIMITS + segment::LDTR, guest::LDTR_LIMIT),
        (
            GUEST_SEGMENT_ATTRIBUTES + segment::SS,
            guest::SS_ACCESS_RIGHTS,
        ),
        (
            GUEST_SEGMENT_ATTRIBUTES + segment::TR,
            guest::TR_ACCESS_RIGHTS,
        ),
        (GUEST_SEGMENT_BASES + segment::FS, guest::FS_BASE),
        (GUEST_SEGMENT_BASES + segment::GS, guest::GS_BASE),
    ] {
        assert_eq!(ours, theirs);
    }
}

/// enter.S writes these.
#[test]
fn assembly_has_the_same() {
    let text = include_str!("../src/vmx/enter.S");
    for (name, value) in [
        ("FIELD_PIN_CONTROLS", control::PINBASED_EXEC_CONTROLS),
        ("FIELD_HOST_RSP", host::RSP),
        ("FIELD_HOST_RIP", host::RIP),
    ] {
        assert!(text.contains(&format!("{name}, {value:#x}")), "{name}");
    }
}
