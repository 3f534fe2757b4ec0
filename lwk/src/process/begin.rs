//! The beginning of a program: by the base's files, read through delegated calls.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use insula_abi::lwk::{process_state, request};
use insula_bare::cpu;

use super::areas::{AreaFlags, Rights};
use super::elf::{HEAD_SIZE, NotAProgram, Program, Segment};
use super::errno::Errno;
use super::layout::{self, Layout, STACK_SIZE};
use super::memory::Memory;
use super::rseq;
use super::scheduling::{CoreSet, Priority};
use super::script::Interpreter;
use super::signals::frame;
use super::space::{Place, Space};
use super::stack::{self, Arguments, auxiliary};
use super::{PAGE, Process, Thread, Words, list, vdso};
use crate::calls::number;
use crate::delegation::{Desk, ProcessPages};
use crate::memory::{has_room, zeroed};
use crate::{cores, info, random, warning};

/// Most that arguments and environment may take.
pub(crate) const ARGUMENTS_MAX: u64 = STACK_SIZE / 4;
/// `AT_FDCWD`.
const HERE: u64 = -100_i64 as u64;

/// Bytes of the kernel's that a process takes, with its first thread and what it begins with.
pub(super) const PROCESS_BYTES: u64 = 64 << 10;

/// Why a program did not begin.
#[derive(Clone, Copy, Debug)]
pub(super) enum BeginError {
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
    has_room(PROCESS_BYTES).ok()?;
    let space = crate::start::with_kernel_table(|kernel| Space::new(kernel, pages.space()));
    let process = Process::new(pages, Memory::new(space.ok()?, pages));
    let desk = Desk::sit(pages.area(), pages.desk());
    let scheduling = (Priority::default(), CoreSet::ALL);
    let (ignored, blocked) = pages.inherited_signals();
    process.signals().ignore(ignored);
    let identity = (pages.pid(), desk);
    let mut thread = Thread::new(Arc::clone(&process), identity, blocked, scheduling).ok()?;
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
    // Of what the base says where a program lies nothing is known before it has memory.
    let buffer = thread.with_space(|space, release| {
        space.map(Place::Near(0), PAGE, Rights::READ | Rights::WRITE, release)
    })?;
    layout::inherit(thread, buffer)?;
    thread.with_space(|space, release| space.unmap(buffer, buffer + PAGE, release))?;
    let layout = Layout::of(thread);
    let top = layout.map_stack(thread)?;
    // The lower end of the stack, which a program reaches late if ever, passes for a buffer.
    let buffer = top - STACK_SIZE;
    let mut arguments = read_arguments(thread, buffer)?;
    let image = find(thread, HERE, &mut arguments, buffer)?;
    enter(thread, (top, &layout), &arguments, image)?;
    Ok(layout::trim_stack(thread)?)
}

/// Has a thread go on as another program, in memory that is empty.
///
/// # Errors
/// The thread has no program any more.
pub(super) fn replace(
    thread: &mut Thread,
    arguments: &Arguments,
    image: Image,
) -> Result<(), BeginError> {
    let layout = Layout::of(thread);
    let top = layout.map_stack(thread)?;
    enter(thread, (top, &layout), arguments, image)
}

/// Brings a program into memory, with its stack below `top`.
fn enter(
    thread: &mut Thread,
    (top, layout): (u64, &Layout),
    arguments: &Arguments,
    image: Image,
) -> Result<(), BeginError> {
    let buffer = top - STACK_SIZE;
    let program = bring(thread, image.program, Some(layout.program()))?;
    let interpreter = match image.interpreter {
        Some(interpreter) => Some(bring(thread, interpreter, None)?),
        None => None,
    };
    let mut entries = entries(thread, &program, interpreter.as_ref())?;
    let area = thread.process.pages().area();
    let object = thread.with_space(|space, release| vdso::map(space, area, release));
    entries.extend(object.map(|at| (auxiliary::SYSINFO_EHDR, at)));
    let random = random_bytes(thread, buffer)?;
    let (start, bytes) = stack::build(top, arguments, random, &entries)?;
    note_words(thread, &arguments.path, &entries);
    thread.with_space(|space, _| {
        space.write(start, &bytes)?;
        space.set_heap(layout.heap(program.end));
        Ok::<_, Errno>(())
    })?;
    let registers = &mut thread.context.registers;
    registers.rsp = start;
    registers.rip = interpreter.map_or(program.entry, |interpreter| interpreter.entry);
    Ok(())
}

/// What the base gives each program at random; the kernel takes some for itself.
fn random_bytes(thread: &mut Thread, buffer: u64) -> Result<[u8; 16], Errno> {
    let (mut own, mut programs) = ([0; 16], [0; 16]);
    let size = (own.len() + programs.len()) as u64;
    thread.call(number::GETRANDOM, [buffer, size, 0, 0, 0, 0])?;
    let mut space = thread.process.space();
    space.read(buffer, &mut programs)?;
    space.read(buffer + programs.len() as u64, &mut own)?;
    random::stir(&own);
    Ok(programs)
}

/// For a core file.
fn note_words(thread: &Thread, name: &[u8], entries: &[(u64, u64)]) {
    let end = (auxiliary::NULL, 0);
    let words = entries.iter().chain([&end]);
    let auxiliary = words.flat_map(|&(kind, value)| [kind, value]);
    *thread.process.words.lock() = Words {
        name: name.to_vec(),
        auxiliary: auxiliary.flat_map(u64::to_le_bytes).collect(),
    };
}

fn read_arguments(thread: &mut Thread, buffer: u64) -> Result<Arguments, BeginError> {
    let size = thread.process.pages().arguments_size();
    if size > ARGUMENTS_MAX {
        return Err(Errno(7).into()); // E2BIG
    }
    let copied = thread.call(request::ARGUMENTS, [buffer, size, 0, 0, 0, 0])?;
    let mut block = zeroed(copied.min(size) as usize)?;
    thread.process.space().read(buffer, &mut block)?;
    Arguments::read(&block).map_err(|error| match error {
        Errno::EINVAL => BeginError::File(NotAProgram("its arguments are none")),
        error => error.into(),
    })
}

/// A file that is open, and what it says of the program in it.
#[derive(Debug)]
struct Found {
    file: u64,
    program: Program,
}

/// A program that can be begun: its file, and that of its interpreter.
#[derive(Debug)]
pub(super) struct Image {
    program: Found,
    interpreter: Option<Found>,
}

impl Image {
    /// The descriptor of the program's file.
    pub(super) fn file(&self) -> u64 {
        self.program.file
    }

    /// Gives it up.
    pub(super) fn close(self, thread: &mut Thread) {
        let interpreter = self.interpreter.map(|found| found.file);
        for file in [self.program.file].into_iter().chain(interpreter) {
            // It is open, and for reading.
            let _ = close(thread, file);
        }
    }
}

/// Opens the program that arguments name, by the way of scripts, which changes the arguments.
/// `folder` is where a relative path begins, `buffer` memory of the program's.
///
/// # Errors
/// As of execve(2).
pub(super) fn find(
    thread: &mut Thread,
    folder: u64,
    arguments: &mut Arguments,
    buffer: u64,
) -> Result<Image, BeginError> {
    /// Scripts that lead to scripts.
    const SCRIPTS_MAX: usize = 5;
    let mut folder = folder;
    for _ in 0..=SCRIPTS_MAX {
        let (file, head) = open(thread, folder, &arguments.path, buffer)?;
        let Some(interpreter) = Interpreter::read(&head) else {
            let found = parse(thread, file, &head);
            return find_interpreter(thread, found?, buffer);
        };
        close(thread, file)?;
        interpreter.take_over(arguments)?;
        folder = HERE;
    }
    Err(Errno::ELOOP.into())
}

fn find_interpreter(thread: &mut Thread, program: Found, buffer: u64) -> Result<Image, BeginError> {
    let Some((offset, size)) = program.program.interpreter else {
        return Ok(Image {
            program,
            interpreter: None,
        });
    };
    let file = program.file;
    let found = read_file(thread, file, buffer, offset, size).map_err(BeginError::from);
    let found = found.and_then(|mut name| {
        name.pop();
        let (file, head) = open(thread, HERE, &name, buffer)?;
        parse(thread, file, &head)
    });
    match found {
        Ok(interpreter) => Ok(Image {
            program,
            interpreter: Some(interpreter),
        }),
        Err(error) => {
            close(thread, file)?;
            Err(error)
        }
    }
}

/// Opens a file that may be executed, and reads its beginning.
fn open(
    thread: &mut Thread,
    folder: u64,
    name: &[u8],
    buffer: u64,
) -> Result<(u64, Vec<u8>), BeginError> {
    const EXECUTE: u64 = 1;
    const BY_EFFECTIVE_IDS: u64 = 0x200;
    const READ_ONLY_CLOSE_ON_EXEC: u64 = 0o2_000_000;
    let mut path = name.to_vec();
    path.push(0);
    thread.with_space(|space, _| space.write(buffer, &path))?;
    let may = [folder, buffer, EXECUTE, BY_EFFECTIVE_IDS, 0, 0];
    thread.call(number::FACCESSAT2, may)?;
    let how = [folder, buffer, READ_ONLY_CLOSE_ON_EXEC, 0, 0, 0];
    let file = thread.call(number::OPENAT, how)?;
    match read_file(thread, file, buffer, 0, HEAD_SIZE as u64) {
        Ok(head) => Ok((file, head)),
        Err(error) => {
            close(thread, file)?;
            // A directory can be opened, but is no program.
            let is_folder = error == Errno::EISDIR;
            Err(if is_folder { Errno::EACCES } else { error }.into())
        }
    }
}

fn parse(thread: &mut Thread, file: u64, head: &[u8]) -> Result<Found, BeginError> {
    match Program::read(head) {
        Ok(program) => Ok(Found { file, program }),
        Err(error) => {
            close(thread, file)?;
            Err(error.into())
        }
    }
}

/// A program whose segments are in memory.
struct Loaded {
    bias: u64,
    entry: u64,
    end: u64,
    headers: (u64, u64),
}

/// Brings a program's segments into memory, at `at` if it can lie anywhere, or as high as there is
/// room; its file is closed.
fn bring(thread: &mut Thread, found: Found, at: Option<u64>) -> Result<Loaded, BeginError> {
    let (start, end) = found.program.span();
    let place = match (found.program.movable, at) {
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
    let program = found.program.moved_by(bias);
    for segment in &program.segments {
        load_segment(thread, found.file, segment)?;
    }
    close(thread, found.file)?;
    Ok(Loaded {
        bias,
        entry: program.entry,
        end: program.span().1,
        headers: program.headers,
    })
}

fn load_segment(thread: &mut Thread, file: u64, segment: &Segment) -> Result<(), Errno> {
    let (start, end) = segment.pages();
    let writable = Rights::READ | Rights::WRITE;
    thread.with_space(|space, release| space.protect(start, end, writable, release))?;
    let (address, size) = (segment.address, segment.file_size);
    fill(thread, file, address, segment.offset, size)?;
    let filled = (address + size).next_multiple_of(PAGE).min(end);
    let may_differ = segment.rights.contains(Rights::WRITE);
    let mut flags = AreaFlags::empty();
    flags.set(AreaFlags::MAY_DIFFER, may_differ);
    if size > 0 {
        let range = (start, filled, filled);
        thread.with_space(|space, release| space.mark_file(range, flags, release))?;
    }
    if segment.rights != writable {
        thread.with_space(|space, release| space.protect(start, end, segment.rights, release))?;
    }
    Ok(())
}

/// Has the base read a part of a file to where the program will find it. What the file lacks stays
/// zero. How many bytes there were.
///
/// # Errors
/// What the base answered; [`Errno::ENOMEM`].
pub(crate) fn fill(
    thread: &mut Thread,
    file: u64,
    address: u64,
    offset: u64,
    size: u64,
) -> Result<u64, Errno> {
    // All of it is written: else the base would ask for it page by page.
    let end = address.saturating_add(size);
    populate(thread, address, end)?;
    let mut done = 0;
    while done < size {
        let arguments = [file, address + done, size - done, offset + done, 0, 0];
        match thread.call(number::PREAD64, arguments)? {
            0 => break,
            read => done += read.min(size - done),
        }
    }
    Ok(done)
}

/// Makes memory present that is to be written; waits for programs that have ended, if there is too
/// little.
fn populate(thread: &mut Thread, start: u64, end: u64) -> Result<(), Errno> {
    loop {
        let populated = thread.process.space().populate(start, end, Rights::WRITE);
        if populated != Err(Errno::ENOMEM) {
            thread.starved_since_ns = None;
            return populated;
        }
        let is_any_back = thread.with_space(|space, release| space.recover(release));
        if !is_any_back && !thread.can_wait_for_memory() {
            thread.starved_since_ns = None;
            return Err(Errno::ENOMEM);
        }
        list::tend();
        cores::answer_questions();
        cpu::take_interrupts();
    }
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
    let mut bytes = zeroed(read.min(size) as usize)?;
    thread.process.space().read(buffer, &mut bytes)?;
    Ok(bytes)
}

fn close(thread: &mut Thread, file: u64) -> Result<(), Errno> {
    thread.call(number::CLOSE, [file, 0, 0, 0, 0, 0]).map(drop)
}

/// Bytes of stack that a signal takes.
fn frame_size() -> u64 {
    let extended = insula_bare::ExtendedState::new().map_or(0, |state| state.bytes().len());
    (frame::SIZE + extended).next_multiple_of(16) as u64 + frame::SLACK
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
        (auxiliary::MINSIGSTKSZ, frame_size()),
        (auxiliary::RSEQ_FEATURE_SIZE, rseq::FEATURES_SIZE),
        (auxiliary::RSEQ_ALIGN, rseq::ALIGNMENT),
        (auxiliary::HWCAP2, if bases { HWCAP2_FSGSBASE } else { 0 }),
    ])
}
