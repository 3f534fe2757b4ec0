//! The needed part of QEMU's plugin interface, version 4: that of QEMU 9.2 and later
//! (`include/qemu/qemu-plugin.h` there).
//!
//! All unsafe code is here. QEMU calls from several threads, one for each core; the callbacks are
//! thread-safe.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::marker::PhantomData;

use crate::core;

/// Interface version of this plugin, which QEMU reads.
#[unsafe(no_mangle)]
static qemu_plugin_version: c_int = 4;

type PluginId = u64;
/// Callback for an executed block or instruction: the core, and the word of the registration.
type Executed = extern "C" fn(c_uint, *mut c_void);
/// Callback for a memory access: the core, the kind, the address, and the word.
type Accessed = extern "C" fn(c_uint, u32, u64, *mut c_void);

/// The callbacks read no register of the machine.
const NO_REGISTERS: c_int = 0;
/// Loads and stores.
const LOADS_AND_STORES: c_int = 3;

#[repr(C)]
struct RawBlock([u8; 0]);
#[repr(C)]
struct RawInstruction([u8; 0]);

unsafe extern "C" {
    fn qemu_plugin_register_vcpu_tb_trans_cb(
        id: PluginId,
        translated: extern "C" fn(PluginId, *mut RawBlock),
    );
    fn qemu_plugin_register_vcpu_tb_exec_cb(
        block: *mut RawBlock,
        executed: Executed,
        registers: c_int,
        word: *mut c_void,
    );
    fn qemu_plugin_register_vcpu_insn_exec_cb(
        instruction: *mut RawInstruction,
        executed: Executed,
        registers: c_int,
        word: *mut c_void,
    );
    fn qemu_plugin_register_vcpu_mem_cb(
        instruction: *mut RawInstruction,
        accessed: Accessed,
        registers: c_int,
        which: c_int,
        word: *mut c_void,
    );
    fn qemu_plugin_tb_n_insns(block: *const RawBlock) -> usize;
    fn qemu_plugin_tb_vaddr(block: *const RawBlock) -> u64;
    fn qemu_plugin_tb_get_insn(block: *const RawBlock, index: usize) -> *mut RawInstruction;
    fn qemu_plugin_insn_data(
        instruction: *const RawInstruction,
        bytes: *mut c_void,
        size: usize,
    ) -> usize;
    fn qemu_plugin_insn_size(instruction: *const RawInstruction) -> usize;
    fn qemu_plugin_insn_vaddr(instruction: *const RawInstruction) -> u64;
    fn qemu_plugin_outs(text: *const c_char);
}

/// A block during its translation.
pub(crate) struct Block<'a>(*mut RawBlock, PhantomData<&'a RawBlock>);

/// An instruction of the block.
pub(crate) struct Instruction<'a>(*mut RawInstruction, PhantomData<&'a RawInstruction>);

impl<'a> Block<'a> {
    /// Address of the block.
    pub(crate) fn address(&self) -> u64 {
        // SAFETY: the block is QEMU's, which keeps it until the callback returns.
        unsafe { qemu_plugin_tb_vaddr(self.0) }
    }

    /// All of its instructions.
    pub(crate) fn instructions(&self) -> impl Iterator<Item = Instruction<'a>> {
        // SAFETY: as above; each index is less than the count.
        let count = unsafe { qemu_plugin_tb_n_insns(self.0) };
        (0..count).map(|index| {
            // SAFETY: as above.
            Instruction(
                unsafe { qemu_plugin_tb_get_insn(self.0, index) },
                PhantomData,
            )
        })
    }

    /// Has [`crate::executed`] called with `what` whenever the block is executed.
    pub(crate) fn on_execution(&self, what: &'static core::Block) {
        let word = std::ptr::from_ref(what).cast_mut().cast();
        // SAFETY: as above; the word is a pointer of the type that the callback expects, valid for
        // ever.
        unsafe {
            qemu_plugin_register_vcpu_tb_exec_cb(self.0, block_executed, NO_REGISTERS, word);
        }
    }
}

impl Instruction<'_> {
    /// Its address.
    pub(crate) fn address(&self) -> u64 {
        // SAFETY: the instruction is QEMU's, which keeps it until the callback returns.
        unsafe { qemu_plugin_insn_vaddr(self.0) }
    }

    /// Its length, in bytes.
    pub(crate) fn size(&self) -> usize {
        // SAFETY: as above.
        unsafe { qemu_plugin_insn_size(self.0) }
    }

    /// The encoded instruction, if it has exactly that many bytes.
    pub(crate) fn bytes<const SIZE: usize>(&self) -> Option<[u8; SIZE]> {
        let mut bytes = [0; SIZE];
        // SAFETY: as above; that many bytes may be written.
        let copied = unsafe { qemu_plugin_insn_data(self.0, bytes.as_mut_ptr().cast(), SIZE) };
        (copied == SIZE && self.size() == SIZE).then_some(bytes)
    }

    /// Has [`crate::mark_executed`] called with `code` whenever it is executed.
    pub(crate) fn on_execution(&self, code: u32) {
        let word = std::ptr::without_provenance_mut(code as usize);
        // SAFETY: as above; the word is only a number.
        unsafe {
            qemu_plugin_register_vcpu_insn_exec_cb(self.0, mark_executed, NO_REGISTERS, word);
        }
    }

    /// Has [`crate::accessed`] called whenever it loads or stores.
    pub(crate) fn on_access(&self) {
        let none = std::ptr::null_mut();
        // SAFETY: as above; the word is not used.
        unsafe {
            qemu_plugin_register_vcpu_mem_cb(
                self.0,
                accessed,
                NO_REGISTERS,
                LOADS_AND_STORES,
                none,
            );
        }
    }
}

/// Writes a text to QEMU's log.
pub(crate) fn log(text: &str) {
    if let Ok(text) = CString::new(text) {
        // SAFETY: the text ends with a zero byte, and is not kept.
        unsafe { qemu_plugin_outs(text.as_ptr()) }
    }
}

extern "C" fn translated(_: PluginId, block: *mut RawBlock) {
    crate::translated(&Block(block, PhantomData));
}

extern "C" fn block_executed(core: c_uint, word: *mut c_void) {
    // SAFETY: the word is from `Block::on_execution`, and never freed.
    crate::executed(core, unsafe { &*word.cast::<core::Block>() });
}

extern "C" fn mark_executed(core: c_uint, word: *mut c_void) {
    // The word is from `Instruction::on_execution`, and has 32 bits.
    crate::mark_executed(core, word.addr() as u32);
}

extern "C" fn accessed(core: c_uint, _kind: u32, address: u64, _word: *mut c_void) {
    crate::accessed(core, address);
}

/// Called by QEMU first of all.
#[unsafe(no_mangle)]
extern "C" fn qemu_plugin_install(
    id: PluginId,
    _machine: *const c_void,
    count: c_int,
    arguments: *const *const c_char,
) -> c_int {
    let arguments: Vec<_> = (0..usize::try_from(count).unwrap_or_default())
        // SAFETY: QEMU passes that many texts, which end with a zero byte and are kept until this
        // returns.
        .map(|index| unsafe { CStr::from_ptr(*arguments.add(index)) }.to_string_lossy())
        .collect();
    if let Err(error) = crate::install(arguments.iter().map(AsRef::as_ref)) {
        eprintln!("counter: {error}");
        return -1;
    }
    // SAFETY: the callback is a function of this library, which QEMU never unloads.
    unsafe { qemu_plugin_register_vcpu_tb_trans_cb(id, translated) };
    0
}
