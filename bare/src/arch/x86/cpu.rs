//! Registers and special instructions of the processor.

use core::arch::asm;
#[cfg(not(target_os = "none"))]
use core::arch::x86_64::_rdtsc;
use core::arch::x86_64::{__cpuid_count, CpuidResult};

/// Model-specific registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Msr {
    /// Base address and mode of the local APIC.
    ApicBase = 0x1b,
    /// First register of the local APIC in x2APIC mode.
    X2Apic = 0x800,
    /// Deadline of the local APIC's timer, in ticks of the time stamp counter.
    TscDeadline = 0x6e0,
    /// Memory types that page table entries name (Intel SDM volume 3, 12.12).
    Pat = 0x277,
    /// Extended features: SYSCALL, NX.
    Efer = 0xc000_0080,
    /// Segments for SYSCALL and SYSRET.
    Star = 0xc000_0081,
    /// Entry point of SYSCALL.
    LStar = 0xc000_0082,
    /// Flags that SYSCALL clears.
    FMask = 0xc000_0084,
    /// Base of FS.
    FsBase = 0xc000_0100,
    /// Base of GS.
    GsBase = 0xc000_0101,
    /// GS base that SWAPGS exchanges with it.
    KernelGsBase = 0xc000_0102,
    /// Value that RDTSCP and RDPID return: the core number.
    TscAux = 0xc000_0103,
}

/// Reads a model-specific register.
///
/// # Safety
/// The processor has the register.
#[must_use]
pub unsafe fn read_msr(register: u32) -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: reading has no effect; the register exists, by the caller.
    unsafe {
        asm!("rdmsr", in("ecx") register, out("eax") low, out("edx") high,
             options(nomem, nostack, preserves_flags));
    }
    u64::from(high) << 32 | u64::from(low)
}

/// Writes a model-specific register.
///
/// # Safety
/// The processor has the register, and the kernel can go on with the value.
pub unsafe fn write_msr(register: u32, value: u64) {
    // SAFETY: as promised by the caller.
    unsafe {
        asm!("wrmsr", in("ecx") register, in("eax") value as u32, in("edx") (value >> 32) as u32,
             options(nostack, preserves_flags));
    }
}

/// Executes CPUID.
#[must_use]
pub fn cpuid(leaf: u32, subleaf: u32) -> CpuidResult {
    __cpuid_count(leaf, subleaf)
}

/// Returns a random number from RDRAND, if the processor has it.
#[must_use]
pub fn random() -> Option<u64> {
    /// Intel: after ten failures the generator is broken.
    const ATTEMPTS: usize = 10;
    if cpuid(1, 0).ecx & 1 << 30 == 0 {
        return None;
    }
    (0..ATTEMPTS).find_map(|_| {
        let (word, done): (u64, u8);
        // SAFETY: CPUID says that the processor has it; it changes two registers and flags.
        unsafe {
            asm!("rdrand {}", "setc {}", out(reg) word, out(reg_byte) done, options(nomem, nostack))
        }
        (done != 0).then_some(word)
    })
}

/// Reads the time stamp counter.
#[must_use]
pub fn time_stamp() -> u64 {
    #[cfg(not(target_os = "none"))]
    // SAFETY: every x86-64 processor has it, and the host lets programs read it.
    return unsafe { _rdtsc() };
    #[cfg(target_os = "none")]
    {
        let (low, high): (u32, u32);
        // SAFETY: every x86-64 processor has it, and nobody else sets CR4.TSD.
        unsafe {
            asm!("lfence", "rdtsc", out("eax") low, out("edx") high,
                 options(nomem, nostack, preserves_flags));
        }
        u64::from(high) << 32 | u64::from(low)
    }
}

/// Hints that this is a spin loop.
pub fn relax() {
    core::hint::spin_loop();
}

/// Halts this core for good.
pub fn halt_forever() -> ! {
    loop {
        // SAFETY: with interrupts off only an NMI ends the halt, and the loop halts again.
        unsafe { asm!("cli", "hlt", options(nomem, nostack)) }
    }
}

/// Enables interrupts and halts until one has been handled. The caller has interrupts off and has
/// looked for work: an interrupt in between is not lost, as STI takes effect only after HLT has
/// begun.
pub fn wait_for_interrupt() {
    // SAFETY: interrupts go to the kernel's handler, which is installed once the core is set up.
    unsafe { asm!("sti", "hlt", "cli", options(nostack)) }
}

/// Handles pending interrupts, without waiting for one.
pub fn poll_interrupts() {
    // SAFETY: as above.
    unsafe { asm!("sti", "nop", "cli", options(nostack)) }
}

/// Reads CR2: the address of the last page fault.
#[must_use]
pub fn fault_address() -> u64 {
    let address: u64;
    // SAFETY: reading has no effect.
    unsafe { asm!("mov {}, cr2", out(reg) address, options(nomem, nostack, preserves_flags)) }
    address
}

/// Reads CR3: the root of the page table in use.
#[must_use]
pub fn root() -> u64 {
    let root: u64;
    // SAFETY: reading has no effect.
    unsafe { asm!("mov {}, cr3", out(reg) root, options(nomem, nostack, preserves_flags)) }
    root & !0xfff
}

/// Loads CR3, which flushes all translations that are not global.
///
/// # Safety
/// The table at `root` maps the kernel as the current one does.
pub unsafe fn set_root(root: u64) {
    // SAFETY: as promised by the caller.
    unsafe { asm!("mov cr3, {}", in(reg) root, options(nostack, preserves_flags)) }
}

/// Flushes the translation of the page at `address` on this core.
pub fn flush_tlb_page(address: u64) {
    // SAFETY: at worst the translation is looked up again.
    unsafe { asm!("invlpg [{}]", in(reg) address, options(nostack, preserves_flags)) }
}

/// Writes XCR0: the states of the processor that programs use.
///
/// # Safety
/// 1. CR4.OSXSAVE is set. 2. The processor accepts the value, and the kernel can go on with it.
pub unsafe fn write_xcr0(value: u64) {
    // SAFETY: as promised by the caller.
    unsafe {
        asm!("xsetbv", in("ecx") 0, in("eax") value as u32, in("edx") (value >> 32) as u32,
             options(nostack, preserves_flags));
    }
}

/// Sets bits of CR4, and clears others.
///
/// # Safety
/// The processor has the bits, and the kernel can go on with them.
pub unsafe fn change_cr4(clear: u64, set: u64) {
    let mut value: u64;
    // SAFETY: as promised by the caller.
    unsafe {
        asm!("mov {}, cr4", out(reg) value, options(nomem, nostack, preserves_flags));
        value = value & !clear | set;
        asm!("mov cr4, {}", in(reg) value, options(nostack, preserves_flags));
    }
}

/// Sets bits of CR0, and clears others.
///
/// # Safety
/// As of [`change_cr4`].
pub unsafe fn change_cr0(clear: u64, set: u64) {
    let mut value: u64;
    // SAFETY: as promised by the caller.
    unsafe {
        asm!("mov {}, cr0", out(reg) value, options(nomem, nostack, preserves_flags));
        value = value & !clear | set;
        asm!("mov cr0, {}", in(reg) value, options(nostack, preserves_flags));
    }
}
