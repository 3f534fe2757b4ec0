//! The second entry: a kernel that the base calls, on a core that they share.
//!
//! Protocol: `abi/include/insula_shared_core.h`. To the kernel, leaving the core is a call that
//! returns when the base enters it again.

use core::mem::offset_of;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use insula_abi::shared_core::{LEAVE_ENDED, SHARED_CORE_MAGIC, SHARED_CORE_REVISION, SharedCore};

use super::cpu;
use super::paging::{Flags, MapError, Page, PageSize, PageTable};
use super::trap;
use crate::memory::{FrameAllocator, PhysAddr};

// Offsets that boot.S and called.S use.
const _: () = {
    assert!(offset_of!(SharedCore, leave) == 0x10);
    assert!(offset_of!(SharedCore, directory) == 0x30);
    assert!(offset_of!(SharedCore, abandon) == 0x40);
    assert!(offset_of!(SharedCore, nmis) == 0x88);
    assert!(offset_of!(SharedCore, reason) == 0x90);
    assert!(LEAVE_ENDED == 3);
};

/// Bits in a word of a bitmap of vectors.
const WORD_BITS: usize = 64;
const WORDS: usize = 4;

/// Address of the shared page; 0 if the kernel has its cores to itself. Read by called.S.
#[cfg_attr(target_os = "none", unsafe(export_name = "bare_called_page"))]
static PAGE: AtomicUsize = AtomicUsize::new(0);

/// The page by which this kernel and the base share the core.
#[derive(Clone, Copy, Debug)]
pub struct SharedPage {
    address: usize,
}

/// Returns the page, if the core is shared.
#[must_use]
pub fn page() -> Option<SharedPage> {
    match PAGE.load(Ordering::Relaxed) {
        0 => None,
        address => Some(SharedPage { address }),
    }
}

/// Stores what the first core was entered with: the address of the page, or 0.
///
/// # Panics
/// If the base speaks another revision of the protocol.
pub fn init(address: u64) {
    PAGE.store(address as usize, Ordering::Relaxed);
    if let Some(page) = page() {
        let magic = page.word(offset_of!(SharedCore, magic));
        let revision = page.word(offset_of!(SharedCore, revision));
        assert!(
            magic.load(Ordering::Relaxed) == SHARED_CORE_MAGIC
                && revision.load(Ordering::Relaxed) as u32 == SHARED_CORE_REVISION,
            "the base shares cores by another protocol"
        );
    }
}

/// Has NMIs go to the base from now on, if the core is shared. Its descriptor tables are loaded.
pub fn pass_on_nmis() {
    if page().is_some() {
        trap::set_nmi_entry(nmi_entry());
    }
}

#[cfg(target_os = "none")]
fn nmi_entry() -> usize {
    unsafe extern "C" {
        fn bare_called_nmi();
    }
    bare_called_nmi as *const () as usize
}

#[cfg(not(target_os = "none"))]
fn nmi_entry() -> usize {
    0
}

impl SharedPage {
    fn word(self, offset: usize) -> &'static AtomicU64 {
        let word = core::ptr::with_exposed_provenance::<AtomicU64>(self.address + offset);
        // SAFETY: 1. the base has mapped the page, and `map` does in later tables. 2. All words
        // are aligned, and only accessed as atomics.
        unsafe { &*word }
    }

    /// Maps the page, and that of the code which switches, where the base has them.
    ///
    /// # Errors
    /// [`MapError`].
    pub fn map(
        self,
        kernel: &mut PageTable,
        frames: &mut dyn FrameAllocator,
    ) -> Result<(), MapError> {
        let load = |offset| self.word(offset).load(Ordering::Relaxed);
        let code = Page {
            start: load(offset_of!(SharedCore, code)),
            frame: PhysAddr(load(offset_of!(SharedCore, code_frame))),
            size: PageSize::Small,
            flags: Flags::empty(),
        };
        let page = Page {
            start: self.address as u64,
            frame: PhysAddr(load(offset_of!(SharedCore, frame))),
            size: PageSize::Small,
            flags: Flags::WRITABLE | Flags::NO_EXECUTE,
        };
        kernel.map(code, frames)?;
        kernel.map(page, frames)
    }

    /// Returns the vector of this kernel's doorbells. All others are the base's.
    #[must_use]
    pub fn vector(self) -> u8 {
        (self
            .word(offset_of!(SharedCore, revision))
            .load(Ordering::Relaxed)
            >> 32) as u8
    }

    /// Notes an interrupt of the base, or an NMI, which it handles when the kernel leaves.
    pub fn take(self, vector: u8) {
        if vector == trap::NMI {
            let nmis = self.word(offset_of!(SharedCore, nmis));
            nmis.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let at = usize::from(vector) / WORD_BITS;
        self.bits(offset_of!(SharedCore, taken), at)
            .fetch_or(1 << (usize::from(vector) % WORD_BITS), Ordering::Relaxed);
    }

    /// Whether the base has interrupts off: then this kernel ends those that it takes.
    #[must_use]
    pub fn ends_interrupts(self) -> bool {
        self.word(offset_of!(SharedCore, interrupts_off))
            .load(Ordering::Relaxed)
            != 0
    }

    /// Whether the kernel's vector comes without the local APIC, and so is not ended there.
    #[must_use]
    pub fn is_vector_virtual(self) -> bool {
        self.word(offset_of!(SharedCore, virtual_vector))
            .load(Ordering::Relaxed)
            != 0
    }

    /// Whether the kernel has to leave for such an interrupt.
    #[must_use]
    pub fn is_taken(self) -> bool {
        let taken = |at| self.bits(offset_of!(SharedCore, taken), at);
        self.word(offset_of!(SharedCore, nmis))
            .load(Ordering::Relaxed)
            != 0
            || (0..WORDS).any(|at| taken(at).load(Ordering::Relaxed) != 0)
    }

    /// Takes the vectors by which the base interrupts this kernel.
    pub fn take_pending(self, mut handle: impl FnMut(u8)) {
        for at in 0..WORDS {
            let word = self.bits(offset_of!(SharedCore, pending), at);
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut bits = word.swap(0, Ordering::AcqRel);
            while bits != 0 {
                handle((at * WORD_BITS) as u8 + bits.trailing_zeros() as u8);
                bits &= bits - 1;
            }
        }
    }

    fn bits(self, bitmap: usize, word: usize) -> &'static AtomicU64 {
        self.word(bitmap + word * size_of::<u64>())
    }

    /// Sets the time at which this kernel is to be entered, of the time stamp counter; `None`: when it
    /// is rung. Returns whether the base knows in time.
    #[must_use]
    pub fn set_deadline(self, at: Option<u64>) -> bool {
        let at = at.unwrap_or(u64::MAX);
        self.word(offset_of!(SharedCore, deadline))
            .store(at, Ordering::Relaxed);
        at >= self
            .word(offset_of!(SharedCore, armed))
            .load(Ordering::Relaxed)
            || at == u64::MAX
    }

    /// Leaves the core to the base, until it enters this kernel again. Interrupts are off.
    pub fn leave(self, reason: u64) {
        self.word(offset_of!(SharedCore, reason))
            .store(reason, Ordering::Relaxed);
        let leave = self.word(offset_of!(SharedCore, leave));
        let leave = leave.load(Ordering::Relaxed) as usize;
        // SAFETY: the base has stored a function of that kind there, which the page table maps.
        let leave = unsafe { core::mem::transmute::<usize, extern "C" fn(usize)>(leave) };
        leave(self.address);
    }

    /// Leaves the core for good.
    pub fn leave_for_good(self) -> ! {
        self.leave(LEAVE_ENDED);
        cpu::halt_forever()
    }
}
