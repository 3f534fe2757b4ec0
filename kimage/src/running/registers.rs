//! A processor's registers, as an NMI has saved them in memory.
//!
//! On an NMI the processor switches to a dedicated stack and pushes where it was. The rest is
//! `asm_exc_nmi` of arch/x86/entry/entry_64.S, unchanged from Linux 4.x to 6.12 (without FRED):
//!
//! ```text
//! end of the stack  ss rsp rflags cs rip      pushed by the processor
//!                   rdx                       scratch
//!                   from the kernel:                      from a process:
//!                   "NMI executing"                       (the rest goes to the thread's own stack,
//!                   a copy of the five to return by        whose last bytes are a struct pt_regs)
//!                   a copy of the five  \
//!                   orig_ax, 15 others  / struct pt_regs
//! ```

use super::RunningError;
use crate::bytes::u64_at;

/// Words of `struct pt_regs` (arch/x86/include/asm/ptrace.h).
const PT_REGS_WORDS: usize = 21;
/// Size of the same in bytes.
const PT_REGS_SIZE: usize = 8 * PT_REGS_WORDS;
/// Words above it on the NMI stack: the processor's five, `rdx`, the variable, the copy for the
/// return.
const ABOVE_WORDS: usize = 5 + 1 + 1 + 5;
/// Bytes read from the end of the stack.
const FRAME_SIZE: usize = 8 * (ABOVE_WORDS + PT_REGS_WORDS);
/// `__KERNEL_CS` of arch/x86/include/asm/segment.h.
const KERNEL_CS: u64 = 0x10;
/// The privilege level in a code segment's selector.
const PRIVILEGE: u64 = 3;
/// Size of a thread's stack in the kernel, in bytes: `THREAD_SIZE` of
/// arch/x86/include/asm/page_64_types.h, without KASAN.
pub const THREAD_SIZE: u64 = 16 << 10;

/// General registers of a processor, in the order of `struct pt_regs` and of ELF core files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(missing_docs, reason = "they are the processor's")]
pub struct Registers {
    pub r15: u64,
    pub r14: u64,
    pub r13: u64,
    pub r12: u64,
    pub rbp: u64,
    pub rbx: u64,
    pub r11: u64,
    pub r10: u64,
    pub r9: u64,
    pub r8: u64,
    pub rax: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    pub orig_rax: u64,
    pub rip: u64,
    pub cs: u64,
    pub rflags: u64,
    pub rsp: u64,
    pub ss: u64,
}

impl Registers {
    /// From the words of a `struct pt_regs`.
    #[must_use]
    pub fn from_words(words: [u64; PT_REGS_WORDS]) -> Self {
        let [
            r15,
            r14,
            r13,
            r12,
            rbp,
            rbx,
            r11,
            r10,
            r9,
            r8,
            rax,
            rcx,
            rdx,
            rsi,
            rdi,
            ..,
        ] = words;
        let [.., orig_rax, rip, cs, rflags, rsp, ss] = words;
        Self {
            r15,
            r14,
            r13,
            r12,
            rbp,
            rbx,
            r11,
            r10,
            r9,
            r8,
            rax,
            rcx,
            rdx,
            rsi,
            rdi,
            orig_rax,
            rip,
            cs,
            rflags,
            rsp,
            ss,
        }
    }

    /// As the words of a `struct pt_regs`.
    #[must_use]
    pub fn words(&self) -> [u64; PT_REGS_WORDS] {
        let Self {
            r15,
            r14,
            r13,
            r12,
            rbp,
            rbx,
            r11,
            r10,
            r9,
            r8,
            rax,
            rcx,
            rdx,
            rsi,
            rdi,
            orig_rax,
            rip,
            cs,
            rflags,
            rsp,
            ss,
        } = *self;
        [
            r15, r14, r13, r12, rbp, rbx, r11, r10, r9, r8, rax, rcx, rdx, rsi, rdi, orig_rax, rip,
            cs, rflags, rsp, ss,
        ]
    }

    /// Position and state of the processor: `rip`, `cs`, `rflags`, `rsp`, `ss`.
    fn place(&self) -> [u64; 5] {
        [self.rip, self.cs, self.rflags, self.rsp, self.ss]
    }
}

/// The registers at the last NMI, by the end of its stack and the start of the current thread's
/// stack.
pub(super) fn nmi_frame(
    stack_end: u64,
    task_stack: u64,
    read: impl Fn(u64, &mut [u8]) -> Result<(), RunningError>,
) -> Option<Registers> {
    let mut frame = [0; FRAME_SIZE];
    read(stack_end.wrapping_sub(FRAME_SIZE as u64), &mut frame).ok()?;
    let original = words::<5>(&frame[FRAME_SIZE - 40..])?;
    let [rip, cs, rflags, rsp, ss] = original;
    if cs == KERNEL_CS {
        let registers = Registers::from_words(words(&frame[..PT_REGS_SIZE])?);
        // Otherwise an NMI came while another was handled, and the processor has overwritten the
        // original.
        return (registers.place() == original).then_some(registers);
    }
    if cs & PRIVILEGE != PRIVILEGE {
        return None;
    }
    let mut bytes = [0; PT_REGS_SIZE];
    let end = task_stack.wrapping_add(THREAD_SIZE);
    let whole = read(end.wrapping_sub(PT_REGS_SIZE as u64), &mut bytes)
        .ok()
        .and_then(|()| Some(Registers::from_words(words(&bytes)?)))
        .filter(|registers| registers.place() == original);
    // The thread has continued, or another runs: the words pushed by the processor are still there.
    Some(whole.unwrap_or(Registers {
        rip,
        cs,
        rflags,
        rsp,
        ss,
        ..Registers::default()
    }))
}

fn words<const N: usize>(bytes: &[u8]) -> Option<[u64; N]> {
    let mut words = [0; N];
    for (index, word) in words.iter_mut().enumerate() {
        *word = u64_at(bytes, 8 * index)?;
    }
    Some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: u64 = 0x5000;
    const TASK: u64 = 0x9000;

    /// Memory from address 0, with words at addresses.
    fn memory(put: &[(u64, &[u64])]) -> Vec<u8> {
        let mut bytes = vec![0; 0x10000];
        for (address, words) in put {
            for (index, word) in words.iter().enumerate() {
                let at = *address as usize + 8 * index;
                bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
            }
        }
        bytes
    }

    fn frame(bytes: &[u8]) -> Option<Registers> {
        nmi_frame(END, TASK, |address, into| {
            let at = address as usize;
            into.copy_from_slice(&bytes[at..at + into.len()]);
            Ok(())
        })
    }

    fn registers(place: [u64; 5]) -> Registers {
        let mut words: [u64; PT_REGS_WORDS] = std::array::from_fn(|index| 100 + index as u64);
        words[16..].copy_from_slice(&place);
        Registers::from_words(words)
    }

    const KERNEL: [u64; 5] = [
        0xffff_ffff_8123_4567,
        KERNEL_CS,
        0x46,
        0xffff_c900_0000_1000,
        0x18,
    ];
    const PROCESS: [u64; 5] = [0x40_1000, 0x33, 0x246, 0x7fff_0000_1000, 0x2b];

    #[test]
    fn registers_of_the_kernel_are_on_the_nmi_stack() {
        let whole = registers(KERNEL);
        let words = whole.words();
        let bytes = memory(&[(END - 40, &KERNEL), (END - FRAME_SIZE as u64, &words)]);
        assert_eq!(frame(&bytes), Some(whole));
        // A nested NMI.
        let other = [KERNEL[0] + 1, KERNEL[1], KERNEL[2], KERNEL[3], KERNEL[4]];
        let bytes = memory(&[(END - 40, &other), (END - FRAME_SIZE as u64, &words)]);
        assert_eq!(frame(&bytes), None);
    }

    #[test]
    fn registers_of_a_process_are_on_its_threads_stack() {
        let whole = registers(PROCESS);
        let top = TASK + THREAD_SIZE - PT_REGS_SIZE as u64;
        let bytes = memory(&[(END - 40, &PROCESS), (top, &whole.words())]);
        assert_eq!(frame(&bytes), Some(whole));
        let bytes = memory(&[(END - 40, &PROCESS)]);
        let some = frame(&bytes).unwrap();
        assert_eq!((some.place(), some.r15), (PROCESS, 0));
    }

    #[test]
    fn without_an_nmi_there_are_no_registers() {
        assert_eq!(frame(&memory(&[])), None);
    }
}
