//! The beginning of a program: by the base's files, read through delegated calls.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use insula_abi::lwk::{process_state, request};
use insula_bare::cpu;

use super::areas::Rights;
use super::elf::{HEAD_SIZE, NotAProgram, Program, Segment};
use super::errno::Errno;
use super::space::{Place, Space};
use super::stack::{self, Arguments, auxiliary};
use super::{PAGE, Process, Thread};
use crate::calls::number;
use crate::delegation::{Desk, ProcessPages};
use crate::{cores, info, warning};

/// Bytes of the first thread's stack: Linux' usual limit.
const STACK_SIZE: u64 = 8 << 20;
/// Most that arguments and environment may take.
const ARGUMENTS_MAX: u64 = STACK_SIZE / 4;
/// Where a program that can lie anywhere is put, as on Linux: two thirds up.
const MOVABLE_AT: u64 = 0x5555_5555_4000;
/// `AT_FDCWD`.
const HERE: u64 = -100_i64 as u64;

/// Why a program did not begin.
#[derive(Clone, Copy, Debug)]
enum BeginError {
    Call(Errno),
    File(NotAProgram),
}

impl From<Errno> for BeginError {
    fn from(error: Errno) -> Self {
        Self::Call(error)
    }
}

impl From<NotAProgram> for BeginError {
    fn from(error: NotAProgram) -> Self {
        Self::File(error)
    }
}

/// Takes notice of a process that the base has begun. Its first thread, ready to run; `None` if
/// there is no memory for as much.
pub(super) fn process(pages: ProcessPages) -> Option<(Arc<Process>, Box<Thread>)> {
    if !pages.area().desk_is_of(pages.desk(), pages.number()) {
        warning!("process {} has no desk", pages.number());
        return None;
    }
    let space = crate::start::with_kernel_table(|kernel| Space::new(kernel, pages.space()));
    let process = Process::new(pages, space.ok()?);
    let desk = Desk::sit(pages.area(), pages.desk());
    let core = cores::least_loaded();
    let mut thread = Thread::new(Arc::clone(&process), pages.pid(), desk, core).ok()?;
    thread.is_new = true;
    pages.set_page_table(process.space().root().0);
    pages.set_state(process_state::ALIVE);
    Some((process, thread))
}

/// Loads the program of a thread that has nothing yet; else ends the process as a shell would tell
/// it: 127 if there is no such file, 126 if it is no program.
pub(crate) fn program(thread: &mut Thread) {
    thread.is_new = false;
    if let Err(error) = load(thread) {
        match error {
            BeginError::Call(Errno(errno)) => {
                info!("process {} does not begin: error {errno}", thread.id);
            }
            BeginError::File(NotAProgram(why)) => {
                info!("process {} does not begin: {why}", thread.id);
            }
        }
        const NO_FILE: u16 = 2;
        let status = match error {
            BeginError::Call(Errno(NO_FILE)) => 127,
            _ => 126,
        };
        thread.exit_process(status << 8);
    }
}

fn load(thread: &mut Thread) -> Result<(), BeginError> {
    let top = map_stack(thread)?;
    // The lower end of the stack, which a program reaches late if ever, passes for a buffer.
    let buffer = top - STACK_SIZE;
    let arguments = read_arguments(thread, buffer)?;
    let program = open(thread, &arguments.path, buffer, Some(MOVABLE_AT))?;
    let interpreter = match program.interpreter {
        Some((offset, size)) => {
            let mut name = read_file(thread, program.file, buffer, offset, size)?;
            name.pop();
            Some(open(thread, &name, buffer, None)?)
        }
        None => None,
    };
    close(thread, program.file)?;
    if let Some(interpreter) = &interpreter {
        close(thread, interpreter.file)?;
    }
    let entries = entries(thread, &program, interpreter.as_ref())?;
    let mut random = [0; 16];
    thread.call(number::GETRANDOM, [buffer, random.len() as u64, 0, 0, 0, 0])?;
    thread.process.space().read(buffer, &mut random)?;
    let (start, bytes) = stack::build(top, &arguments, random, &entries);
    thread.with_space(|space, _| {
        space.write(start, &bytes)?;
        space.set_heap(program.end);
        Ok::<_, Errno>(())
    })?;
    let registers = &mut thread.context.registers;
    registers.rsp = start;
    registers.rip = interpreter.map_or(program.entry, |interpreter| interpreter.entry);
    Ok(())
}

fn map_stack(thread: &mut Thread) -> Result<u64, Errno> {
    let (_, end) = thread.process.space().bounds();
    let top = (end - PAGE) & !(PAGE - 1);
    let rights = Rights::READ | Rights::WRITE;
    let place = Place::At(top - STACK_SIZE);
    thread.with_space(|space, release| space.map(place, STACK_SIZE, rights, release))?;
    Ok(top)
}

fn read_arguments(thread: &mut Thread, buffer: u64) -> Result<Arguments, BeginError> {
    let size = thread.process.pages().arguments_size();
    if size > ARGUMENTS_MAX {
        return Err(Errno(7).into()); // E2BIG
    }
    let copied = thread.call(request::ARGUMENTS, [buffer, size, 0, 0, 0, 0])?;
    let mut block = vec![0; copied.min(size) as usize];
    thread.process.space().read(buffer, &mut block)?;
    Arguments::read(&block).ok_or(BeginError::File(NotAProgram("its arguments are none")))
}

/// A program whose segments are in memory.
struct Loaded {
    file: u64,
    bias: u64,
    entry: u64,
    end: u64,
    headers: (u64, u64),
    interpreter: Option<(u64, u64)>,
}

/// Opens a file by its name and brings its segments into memory: at `at` if it can lie anywhere, or
/// as high as there is room.
fn open(
    thread: &mut Thread,
    name: &[u8],
    buffer: u64,
    at: Option<u64>,
) -> Result<Loaded, BeginError> {
    let mut path = name.to_vec();
    path.push(0);
    thread.with_space(|space, _| space.write(buffer, &path))?;
    const READ_ONLY_CLOSE_ON_EXEC: u64 = 0o2_000_000;
    let file = thread.call(
        number::OPENAT,
        [HERE, buffer, READ_ONLY_CLOSE_ON_EXEC, 0, 0, 0],
    )?;
    let head = read_file(thread, file, buffer, 0, HEAD_SIZE as u64)?;
    let program = Program::read(&head)?;
    let (start, end) = program.span();
    let place = match (program.movable, at) {
        (false, _) => Place::AtIfFree(start),
        (true, Some(at)) => Place::Near(at),
        (true, None) => Place::Near(0),
    };
    // All of it at first, so that nothing else comes in between.
    let size = end - start;
    let base = thread.with_space(|space, release| {
        let base = space.map(place, size, Rights::empty(), release)?;
        Ok::<_, Errno>(base)
    })?;
    let bias = base.wrapping_sub(start);
    let interpreter = program.interpreter;
    let program = program.moved_by(bias);
    for segment in &program.segments {
        load_segment(thread, file, segment)?;
    }
    Ok(Loaded {
        file,
        bias,
        entry: program.entry,
        end: program.span().1,
        headers: program.headers,
        interpreter,
    })
}

fn load_segment(thread: &mut Thread, file: u64, segment: &Segment) -> Result<(), Errno> {
    let (start, end) = segment.pages();
    let writable = Rights::READ | Rights::WRITE;
    thread.with_space(|space, release| space.protect(start, end, writable, release))?;
    fill(
        thread,
        file,
        segment.address,
        segment.offset,
        segment.file_size,
    )?;
    if segment.rights != writable {
        thread.with_space(|space, release| space.protect(start, end, segment.rights, release))?;
    }
    Ok(())
}

/// Has the base read a part of a file to where the program will find it. What the file lacks stays
/// zero.
///
/// # Errors
/// What the base answered.
pub(crate) fn fill(
    thread: &mut Thread,
    file: u64,
    address: u64,
    offset: u64,
    size: u64,
) -> Result<(), Errno> {
    let mut done = 0;
    while done < size {
        let arguments = [file, address + done, size - done, offset + done, 0, 0];
        match thread.call(number::PREAD64, arguments)? {
            0 => break,
            read => done += read,
        }
    }
    Ok(())
}

fn read_file(
    thread: &mut Thread,
    file: u64,
    buffer: u64,
    offset: u64,
    size: u64,
) -> Result<Vec<u8>, Errno> {
    let size = size.min(STACK_SIZE / 2);
    let read = thread.call(number::PREAD64, [file, buffer, size, offset, 0, 0])?;
    let mut bytes = vec![0; read.min(size) as usize];
    thread.process.space().read(buffer, &mut bytes)?;
    Ok(bytes)
}

fn close(thread: &mut Thread, file: u64) -> Result<(), Errno> {
    thread.call(number::CLOSE, [file, 0, 0, 0, 0, 0]).map(drop)
}

/// The auxiliary vector, but for what lies on the stack.
fn entries(
    thread: &mut Thread,
    program: &Loaded,
    interpreter: Option<&Loaded>,
) -> Result<Vec<(u64, u64)>, Errno> {
    let mut id = |number| thread.call(number, [0; 6]);
    let [uid, euid] = [id(number::GETUID)?, id(number::GETEUID)?];
    let [gid, egid] = [id(number::GETGID)?, id(number::GETEGID)?];
    const TICKS_PER_SECOND: u64 = 100;
    const HEADER_SIZE: u64 = 56;
    /// FSGSBASE may be used.
    const HWCAP2_FSGSBASE: u64 = 2;
    let bases = insula_bare::core_area::programs_set_bases();
    Ok(vec![
        (auxiliary::HWCAP, cpu::cpuid(1, 0).edx.into()),
        (auxiliary::PAGESZ, PAGE),
        (auxiliary::CLKTCK, TICKS_PER_SECOND),
        (auxiliary::PHDR, program.headers.0),
        (auxiliary::PHENT, HEADER_SIZE),
        (auxiliary::PHNUM, program.headers.1),
        (
            auxiliary::BASE,
            interpreter.map_or(0, |interpreter| interpreter.bias),
        ),
        (auxiliary::FLAGS, 0),
        (auxiliary::ENTRY, program.entry),
        (auxiliary::UID, uid),
        (auxiliary::EUID, euid),
        (auxiliary::GID, gid),
        (auxiliary::EGID, egid),
        (auxiliary::SECURE, 0),
        (auxiliary::HWCAP2, if bases { HWCAP2_FSGSBASE } else { 0 }),
    ])
}
