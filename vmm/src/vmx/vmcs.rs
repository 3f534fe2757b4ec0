//! The virtual-machine control structure (VMCS) of the calling core: its fields, by instructions.
//!
//! Where in the region a field lies is up to the processor.
//!
//! Source: Intel SDM volume 3, chapter 25 "Virtual Machine Control Structures", and appendix B "Field
//! Encoding in VMCS".

use core::arch::asm;

use insula_bare::PhysAddr;

/// Fields. Those of segment registers are arrays in this order: ES, CS, SS, DS, FS, GS, LDTR, TR; see
/// [`segment`].
#[expect(missing_docs, reason = "they are the manual's names")]
pub mod field {
    pub const VPID: u32 = 0x0000;
    pub const GUEST_SELECTORS: u32 = 0x0800;
    pub const HOST_ES_SELECTOR: u32 = 0x0c00;
    pub const HOST_CS_SELECTOR: u32 = 0x0c02;
    pub const HOST_SS_SELECTOR: u32 = 0x0c04;
    pub const HOST_DS_SELECTOR: u32 = 0x0c06;
    pub const HOST_FS_SELECTOR: u32 = 0x0c08;
    pub const HOST_GS_SELECTOR: u32 = 0x0c0a;
    pub const HOST_TR_SELECTOR: u32 = 0x0c0c;

    pub const MSR_BITMAPS: u32 = 0x2004;
    pub const TSC_OFFSET: u32 = 0x2010;
    pub const EPT_POINTER: u32 = 0x201a;
    pub const XSS_EXITING_BITMAP: u32 = 0x202c;
    pub const ENCLS_EXITING_BITMAP: u32 = 0x202e;
    pub const GUEST_PHYSICAL_ADDRESS: u32 = 0x2400;
    pub const VMCS_LINK_POINTER: u32 = 0x2800;
    pub const GUEST_DEBUGCTL: u32 = 0x2802;
    pub const GUEST_PAT: u32 = 0x2804;
    pub const GUEST_EFER: u32 = 0x2806;
    pub const HOST_PAT: u32 = 0x2c00;
    pub const HOST_EFER: u32 = 0x2c02;

    pub const PIN_CONTROLS: u32 = 0x4000;
    pub const PRIMARY_CONTROLS: u32 = 0x4002;
    pub const EXCEPTION_BITMAP: u32 = 0x4004;
    pub const PAGE_FAULT_MASK: u32 = 0x4006;
    pub const PAGE_FAULT_MATCH: u32 = 0x4008;
    pub const CR3_TARGET_COUNT: u32 = 0x400a;
    pub const EXIT_CONTROLS: u32 = 0x400c;
    pub const EXIT_MSR_STORE_COUNT: u32 = 0x400e;
    pub const EXIT_MSR_LOAD_COUNT: u32 = 0x4010;
    pub const ENTRY_CONTROLS: u32 = 0x4012;
    pub const ENTRY_MSR_LOAD_COUNT: u32 = 0x4014;
    pub const ENTRY_EVENT: u32 = 0x4016;
    pub const ENTRY_ERROR_CODE: u32 = 0x4018;
    pub const ENTRY_INSTRUCTION_LENGTH: u32 = 0x401a;
    pub const SECONDARY_CONTROLS: u32 = 0x401e;
    pub const INSTRUCTION_ERROR: u32 = 0x4400;
    pub const EXIT_REASON: u32 = 0x4402;
    pub const EXIT_EVENT: u32 = 0x4404;
    pub const EXIT_ERROR_CODE: u32 = 0x4406;
    pub const UNDELIVERED_EVENT: u32 = 0x4408;
    pub const UNDELIVERED_ERROR_CODE: u32 = 0x440a;
    pub const EXIT_INSTRUCTION_LENGTH: u32 = 0x440c;
    pub const GUEST_SEGMENT_LIMITS: u32 = 0x4800;
    pub const GUEST_GDTR_LIMIT: u32 = 0x4810;
    pub const GUEST_IDTR_LIMIT: u32 = 0x4812;
    pub const GUEST_SEGMENT_ATTRIBUTES: u32 = 0x4814;
    pub const GUEST_INTERRUPTIBILITY: u32 = 0x4824;
    pub const GUEST_ACTIVITY: u32 = 0x4826;
    pub const GUEST_SYSENTER_CS: u32 = 0x482a;
    pub const PREEMPTION_TIMER: u32 = 0x482e;
    pub const HOST_SYSENTER_CS: u32 = 0x4c00;

    pub const CR0_MASK: u32 = 0x6000;
    pub const CR4_MASK: u32 = 0x6002;
    pub const CR0_SHADOW: u32 = 0x6004;
    pub const CR4_SHADOW: u32 = 0x6006;
    pub const EXIT_QUALIFICATION: u32 = 0x6400;
    pub const GUEST_CR0: u32 = 0x6800;
    pub const GUEST_CR3: u32 = 0x6802;
    pub const GUEST_CR4: u32 = 0x6804;
    pub const GUEST_SEGMENT_BASES: u32 = 0x6806;
    pub const GUEST_GDTR_BASE: u32 = 0x6816;
    pub const GUEST_IDTR_BASE: u32 = 0x6818;
    pub const GUEST_DR7: u32 = 0x681a;
    pub const GUEST_RSP: u32 = 0x681c;
    pub const GUEST_RIP: u32 = 0x681e;
    pub const GUEST_RFLAGS: u32 = 0x6820;
    pub const GUEST_PENDING_DEBUG: u32 = 0x6822;
    pub const GUEST_SYSENTER_ESP: u32 = 0x6824;
    pub const GUEST_SYSENTER_EIP: u32 = 0x6826;
    pub const HOST_CR0: u32 = 0x6c00;
    pub const HOST_CR3: u32 = 0x6c02;
    pub const HOST_CR4: u32 = 0x6c04;
    pub const HOST_FS_BASE: u32 = 0x6c06;
    pub const HOST_GS_BASE: u32 = 0x6c08;
    pub const HOST_TR_BASE: u32 = 0x6c0a;
    pub const HOST_GDTR_BASE: u32 = 0x6c0c;
    pub const HOST_IDTR_BASE: u32 = 0x6c0e;
    pub const HOST_SYSENTER_ESP: u32 = 0x6c10;
    pub const HOST_SYSENTER_EIP: u32 = 0x6c12;
    // HOST_RSP and HOST_RIP are written by enter.S.
}

/// Places of segment registers in the arrays of fields, whose encodings are two apart.
#[expect(missing_docs, reason = "they are the processor's names")]
pub mod segment {
    pub const ES: u32 = 0;
    pub const CS: u32 = 2;
    pub const SS: u32 = 4;
    pub const DS: u32 = 6;
    pub const FS: u32 = 8;
    pub const GS: u32 = 10;
    pub const LDTR: u32 = 12;
    pub const TR: u32 = 14;
}

/// The current VMCS of the calling core.
#[derive(Debug)]
pub struct Vmcs(());

impl Vmcs {
    /// Makes a region the calling core's VMCS, with undefined fields.
    ///
    /// # Safety
    /// 1. The core is in VMX operation. 2. The region begins with the revision that the core wants, and
    ///    nobody else uses it. 3. There is no other value.
    #[must_use]
    pub unsafe fn load(region: PhysAddr) -> Self {
        let address = region.0;
        let failed: u8;
        // SAFETY: as promised by the caller.
        unsafe {
            asm!("vmclear [{region}]", "vmptrld [{region}]", "setbe {failed}",
                 region = in(reg) &raw const address, failed = out(reg_byte) failed,
                 options(nostack));
        }
        assert_eq!(failed, 0, "no VMCS at {address:#x}");
        Self(())
    }

    /// Has the processor keep nothing of a region, which it may have been the VMCS of.
    ///
    /// # Safety
    /// 1. The core is in VMX operation. 2. There is no value for the region.
    pub unsafe fn clear(region: PhysAddr) {
        let address = region.0;
        // SAFETY: as promised by the caller.
        unsafe { asm!("vmclear [{region}]", region = in(reg) &raw const address, options(nostack)) }
    }

    /// Makes a region that was loaded before the calling core's VMCS again.
    ///
    /// # Safety
    /// As of [`load`](Self::load), but there may be other values, which are not used meanwhile.
    #[must_use]
    pub unsafe fn reload(region: PhysAddr) -> Self {
        let address = region.0;
        let failed: u8;
        // SAFETY: as promised by the caller.
        unsafe {
            asm!("vmptrld [{region}]", "setbe {failed}", region = in(reg) &raw const address,
                 failed = out(reg_byte) failed, options(nostack));
        }
        assert_eq!(failed, 0, "no VMCS at {address:#x}");
        Self(())
    }

    /// Reads a field.
    #[must_use]
    pub fn read(&self, field: u32) -> u64 {
        let value: u64;
        let failed: u8;
        // SAFETY: reading changes nothing; the core is in VMX operation as long as there is this value.
        unsafe {
            asm!("vmread {value}, {field}", "setbe {failed}", field = in(reg) u64::from(field),
                 value = out(reg) value, failed = out(reg_byte) failed, options(nostack, nomem));
        }
        assert_eq!(failed, 0, "the VMCS has no field {field:#x}");
        value
    }

    /// Writes a field.
    pub fn write(&mut self, field: u32, value: u64) {
        let failed: u8;
        // SAFETY: 1. the core is in VMX operation. 2. What the fields say about the guest is checked at
        // its entry, and what they say about the monitor is only written by `host::save`.
        unsafe {
            asm!("vmwrite {field}, {value}", "setbe {failed}", field = in(reg) u64::from(field),
                 value = in(reg) value, failed = out(reg_byte) failed, options(nostack));
        }
        assert_eq!(failed, 0, "the VMCS has no field {field:#x}");
    }

    /// Writes several fields.
    pub fn write_all<const N: usize>(&mut self, fields: [(u32, u64); N]) {
        for (field, value) in fields {
            self.write(field, value);
        }
    }
}
