//! Signal frames: what a handler finds on its stack, and the context that it returns to.
//!
//! Source: `struct rt_sigframe` and `struct sigcontext` of Linux on x86-64
//! (arch/x86/include/asm/sigframe.h and uapi/asm/sigcontext.h).
//!
//! ```text
//!   frame    restorer              8 bytes, return address of the handler
//!      8     ucontext              flags, link, alternate stack, registers, mask
//!    312     siginfo             128
//!    440     padding
//!            extended state        as XSAVE wrote it, then a magic number
//! ```

use alloc::vec::Vec;

use insula_bare::Registers;

use crate::model::signals::action::Action;
use crate::model::signals::info::Info;
use crate::model::signals::set::Set;

/// Size of a frame without extended state, in bytes.
pub const SIZE: usize = 440;
/// Maximum padding: red zone, alignment and magic number.
pub const SLACK: u64 = RED_ZONE + ALIGNMENT + 32;
/// Bytes that a program may use below its stack pointer.
const RED_ZONE: u64 = 128;
const ALIGNMENT: u64 = 64;

const AT_FLAGS: usize = 8;
const AT_ALT_STACK: usize = 24;
const AT_REGISTERS: usize = 48;
const AT_SEGMENTS: usize = 192;
const AT_ERROR: usize = 200;
const AT_OLD_MASK: usize = 216;
const AT_EXTENDED: usize = 232;
const AT_MASK: usize = 304;
const AT_INFO: usize = 312;

/// `UC_SIGCONTEXT_SS`, `UC_STRICT_RESTORE_SS`: the frame has SS. `UC_FP_XSTATE` below: it has the
/// XSAVE area.
const FLAGS: u64 = 2 | 4;
const FLAG_XSAVE: u64 = 1;
/// CS and SS of programs; GS and FS between them are 0.
const SEGMENTS: u64 = 0x33 | 0x2b << 48;
/// TF, DF and RF are cleared when a handler starts.
const CLEARED: u64 = 0x100 | 0x400 | 0x1_0000;

/// Offset in the extended state of the area for software (`struct _fpx_sw_bytes`).
const AT_SOFTWARE: usize = 464;
const MAGIC_BEFORE: u32 = 0x4650_5853;
const MAGIC_BEHIND: u32 = 0x4650_5845;

/// Alternate signal stack: `stack_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AltStack {
    /// Lowest address.
    pub start: u64,
    /// Size in bytes.
    pub size: u64,
    /// [`AltStack::DISABLED`], [`AltStack::AUTO_DISARM`] or 0.
    pub flags: u32,
}

impl Default for AltStack {
    fn default() -> Self {
        Self {
            start: 0,
            size: 0,
            flags: Self::DISABLED,
        }
    }
}

impl AltStack {
    /// `SS_ONSTACK`: in use. Only reported.
    pub const IN_USE: u32 = 1;
    /// `SS_DISABLE`: disabled.
    pub const DISABLED: u32 = 2;
    /// `SS_AUTODISARM`: disabled while a handler runs.
    pub const AUTO_DISARM: u32 = 1 << 31;
    /// Size in the program's memory, in bytes.
    pub const BYTES: usize = 24;

    /// Whether a stack pointer is on it.
    #[must_use]
    pub fn holds(&self, pointer: u64) -> bool {
        self.flags & Self::AUTO_DISARM == 0
            && pointer > self.start
            && pointer - self.start <= self.size
    }

    /// Encodes it for a program with that stack pointer.
    #[must_use]
    pub fn to_bytes(&self, pointer: u64) -> [u8; Self::BYTES] {
        let in_use = if self.size > 0 && self.holds(pointer) {
            Self::IN_USE
        } else {
            0
        };
        let words = [self.start, u64::from(self.flags | in_use), self.size].map(u64::to_le_bytes);
        core::array::from_fn(|at| words[at / 8][at % 8])
    }

    /// Decodes it from a program's memory.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        Self {
            start: word(bytes, 0),
            flags: word(bytes, 8) as u32 & !Self::IN_USE,
            size: word(bytes, 16),
        }
    }
}

/// State of a thread that a signal interrupts.
#[derive(Clone, Copy, Debug)]
pub struct InterruptedThread<'a> {
    /// Registers.
    pub registers: &'a Registers,
    /// Signal mask, restored by sigreturn(2).
    pub blocked: Set,
    /// Alternate stack.
    pub alt_stack: AltStack,
    /// Extended state, as XSAVE or FXSAVE wrote it.
    pub extended: &'a [u8],
    /// Enabled components; 0 without XSAVE.
    pub enabled: u64,
    /// Last exception: vector, error, address.
    pub fault: [u64; 3],
}

/// A frame to be written to a program's stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Its address: the handler's stack pointer.
    pub address: u64,
    /// Its content.
    pub bytes: Vec<u8>,
}

/// Registers in the order of `struct sigcontext`.
fn registers(of: &Registers) -> [u64; 18] {
    [
        of.r8, of.r9, of.r10, of.r11, of.r12, of.r13, of.r14, of.r15, of.rdi, of.rsi, of.rbp,
        of.rbx, of.rdx, of.rax, of.rcx, of.rsp, of.rip, of.rflags,
    ]
}

fn put(bytes: &mut [u8], at: usize, word: u64) {
    bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(core::array::from_fn(|index| bytes[at + index]))
}

/// Returns the addresses of the frame and the extended state; `None` if they do not fit.
fn place(thread: &InterruptedThread, action: &Action) -> Option<(u64, u64)> {
    let pointer = thread.registers.rsp;
    let alt_stack = &thread.alt_stack;
    let switches = action.flags & Action::ON_STACK != 0
        && alt_stack.flags & AltStack::DISABLED == 0
        && !alt_stack.holds(pointer);
    let top = match switches {
        true => alt_stack.start.checked_add(alt_stack.size)?,
        false => pointer.checked_sub(RED_ZONE)?,
    };
    let extended = top.checked_sub(thread.extended.len() as u64 + 4)? & !(ALIGNMENT - 1);
    let frame = (extended.checked_sub(SIZE as u64)? & !15).checked_sub(8)?;
    let is_on_alternate = switches || alt_stack.holds(pointer);
    let fits = !is_on_alternate || frame >= alt_stack.start;
    fits.then_some((frame, extended))
}

/// Builds a frame; `None` if it does not fit on the stack.
#[must_use]
pub fn build(thread: &InterruptedThread, info: &Info, action: &Action) -> Option<Frame> {
    let (address, extended) = place(thread, action)?;
    let skip = (extended - address) as usize;
    let mut bytes = alloc::vec![0; skip + thread.extended.len() + 4];
    put(&mut bytes, 0, action.restorer);
    let xsave = if thread.enabled == 0 { 0 } else { FLAG_XSAVE };
    put(&mut bytes, AT_FLAGS, FLAGS | xsave);
    let alt_stack = thread.alt_stack.to_bytes(thread.registers.rsp);
    bytes[AT_ALT_STACK..AT_ALT_STACK + AltStack::BYTES].copy_from_slice(&alt_stack);
    for (value, index) in registers(thread.registers).into_iter().zip(0..) {
        put(&mut bytes, AT_REGISTERS + 8 * index, value);
    }
    put(&mut bytes, AT_SEGMENTS, SEGMENTS);
    let [vector, error, fault_address] = thread.fault;
    let words = [error, vector, thread.blocked, fault_address, extended];
    for (value, index) in words.into_iter().zip(0..) {
        put(&mut bytes, AT_ERROR + 8 * index, value);
    }
    put(&mut bytes, AT_MASK, thread.blocked);
    bytes[AT_INFO..AT_INFO + Info::SIZE].copy_from_slice(&info.to_bytes());
    put_extended(&mut bytes[skip..], thread);
    Some(Frame { address, bytes })
}

fn put_extended(bytes: &mut [u8], thread: &InterruptedThread) {
    let size = thread.extended.len();
    bytes[..size].copy_from_slice(thread.extended);
    if thread.enabled == 0 {
        return;
    }
    let half = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    put(bytes, AT_SOFTWARE, half(MAGIC_BEFORE, size as u32 + 4));
    put(bytes, AT_SOFTWARE + 8, thread.enabled);
    put(bytes, AT_SOFTWARE + 16, u64::from(size as u32));
    bytes[size..size + 4].copy_from_slice(&MAGIC_BEHIND.to_le_bytes());
}

/// Returns the registers with which a handler starts.
#[must_use]
pub fn handler_registers(
    before: &Registers,
    frame: u64,
    info: &Info,
    action: &Action,
) -> Registers {
    Registers {
        rax: 0,
        rdi: info.signal.into(),
        rsi: frame + AT_INFO as u64,
        rdx: frame + AT_FLAGS as u64,
        rsp: frame,
        rip: action.handler,
        rflags: before.rflags & !CLEARED,
        ..*before
    }
}

/// Context that sigreturn(2) restores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestoredThread {
    /// Registers.
    pub registers: Registers,
    /// Signal mask.
    pub blocked: Set,
    /// Alternate stack.
    pub alt_stack: AltStack,
    /// Address of the extended state; 0 for the initial state.
    pub extended: u64,
}

/// Decodes a frame. The program may have written anything to it.
#[must_use]
pub fn read(bytes: &[u8; SIZE]) -> RestoredThread {
    let register = |index: usize| word(bytes, AT_REGISTERS + 8 * index);
    let mut alt_stack = [0; AltStack::BYTES];
    alt_stack.copy_from_slice(&bytes[AT_ALT_STACK..AT_ALT_STACK + AltStack::BYTES]);
    RestoredThread {
        registers: Registers {
            r8: register(0),
            r9: register(1),
            r10: register(2),
            r11: register(3),
            r12: register(4),
            r13: register(5),
            r14: register(6),
            r15: register(7),
            rdi: register(8),
            rsi: register(9),
            rbp: register(10),
            rbx: register(11),
            rdx: register(12),
            rax: register(13),
            rcx: register(14),
            rsp: register(15),
            rip: register(16),
            rflags: register(17),
        },
        blocked: word(bytes, AT_MASK),
        alt_stack: AltStack::from_bytes(&alt_stack),
        extended: word(bytes, AT_EXTENDED),
    }
}

const _: () = assert!(AT_OLD_MASK == AT_ERROR + 16 && AT_EXTENDED == AT_ERROR + 32);

#[cfg(test)]
mod tests {
    use std::vec;

    use proptest::prelude::*;

    use super::*;

    fn some_registers(words: [u64; 18], pointer: u64) -> Registers {
        Registers {
            rax: words[0],
            rbx: words[1],
            rcx: words[2],
            rdx: words[3],
            rsi: words[4],
            rdi: words[5],
            rbp: words[6],
            rsp: pointer,
            r8: words[8],
            r9: words[9],
            r10: words[10],
            r11: words[11],
            r12: words[12],
            r13: words[13],
            r14: words[14],
            r15: words[15],
            rip: words[16],
            rflags: words[17],
        }
    }

    const ACTION: Action = Action {
        handler: 0x1234,
        flags: Action::RESTORER | Action::ON_STACK,
        restorer: 0x5678,
        mask: 0,
    };

    proptest! {
        /// The context is restored unchanged; the handler's stack is aligned, and below all that
        /// the program may use.
        #[test]
        fn a_frame_restores_what_it_saved(
            words: [u64; 18], pointer: u64, blocked: u64, start in 0..1_u64 << 40, size: u16,
            flags in prop::sample::select(vec![0, AltStack::DISABLED, AltStack::AUTO_DISARM]),
            extended in prop::sample::select(vec![(512, 0), (832, 7), (2696, 0xe7)]),
        ) {
            let registers = some_registers(words, pointer);
            let alt_stack = AltStack { start, size: size.into(), flags };
            let area = vec![0x5a; extended.0];
            let thread = InterruptedThread {
                registers: &registers,
                blocked,
                alt_stack,
                extended: &area,
                enabled: extended.1,
                fault: [14, 6, 0xdead],
            };
            let info = Info::fault(11, 1, 0xdead);
            let Some(frame) = build(&thread, &info, &ACTION) else { return Ok(()) };
            prop_assert_eq!(frame.address % 16, 8);
            let end = frame.address + frame.bytes.len() as u64;
            let is_alternate = end <= start + u64::from(size) && frame.address >= start;
            prop_assert!(is_alternate || end <= pointer - RED_ZONE);
            prop_assert!(!is_alternate || flags != AltStack::DISABLED || end <= pointer);
            let restored = read(frame.bytes.first_chunk().unwrap());
            prop_assert_eq!((restored.registers, restored.blocked), (registers, blocked));
            prop_assert_eq!(restored.alt_stack, alt_stack);
            let at = (restored.extended - frame.address) as usize;
            prop_assert_eq!(restored.extended % 64, 0);
            prop_assert_eq!(&frame.bytes[at..at + AT_SOFTWARE], &area[..AT_SOFTWARE]);
            let started = handler_registers(&registers, frame.address, &info, &ACTION);
            prop_assert_eq!((started.rip, started.rdi, started.rsp), (0x1234, 11, frame.address));
            let bytes_at_info = &frame.bytes[(started.rsi - frame.address) as usize..][..Info::SIZE];
            prop_assert_eq!(bytes_at_info, info.to_bytes());
        }
    }

    #[test]
    fn a_frame_fits_on_its_stack() {
        let registers = Registers {
            rsp: 0x9000,
            ..Registers::default()
        };
        let thread = |size| InterruptedThread {
            registers: &registers,
            blocked: 0,
            alt_stack: AltStack {
                start: 0x10_0000,
                size,
                flags: 0,
            },
            extended: &[0; 832],
            enabled: 7,
            fault: [0; 3],
        };
        let info = Info::sent(10, Info::USER, 1, 0);
        assert!(build(&thread(1200), &info, &ACTION).is_none());
        let frame = build(&thread(2048), &info, &ACTION).unwrap();
        assert!((0x10_0000..0x10_0800).contains(&frame.address));
    }
}
