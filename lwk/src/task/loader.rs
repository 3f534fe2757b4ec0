//! The program loader. Files are read by delegated calls.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use insula_abi::lwk::{process_state, request};
use insula_abi::server::ENDPOINT_NAME_MAX;
use insula_bare::cpu;

use crate::base::process_pages::ProcessPages;
use crate::base::slot::Slot;
use crate::hw::memory::kernel_table;
use crate::hw::memory::room::{has_room, zeroed};
use crate::hw::random;
use crate::model::elf::{FormatError, Segment};
use crate::model::errno::Errno;
use crate::model::initial_stack::{self, Arguments, auxiliary};
use crate::model::mounts::mount_point;
use crate::model::scheduling::{CoreSet, Priority};
use crate::model::signals::frame;
use crate::model::vma::{PAGE, Protection, VmaFlags};
use crate::model::{number, rseq};
use crate::task::address_space::{AddressSpace, Placement};
use crate::task::base_mapping::{BaseMapping, Source};
use crate::task::flow::Flow;
use crate::task::image::{Image, OpenFile};
use crate::task::layout::{self, Layout, STACK_SIZE};
use crate::task::mm::Mm;
use crate::task::mounted::{Mount, MountedFiles};
use crate::task::process::{Process, ProgramInfo};
use crate::task::program_file::{AT_FDCWD, LoadError, close, open_program, path_of};
use crate::task::thread::Thread;
use crate::task::{endpoint_registry, load_failure, mounted, remote, running, vdso};
use crate::warning;

/// Maximum size of arguments and environment.
pub(crate) const ARGUMENTS_MAX: u64 = STACK_SIZE / 4;

/// Kernel memory needed for a process with its first thread.
pub(super) const PROCESS_BYTES: u64 = 64 << 10;

/// Creates the process and first thread for a program that the base has started; `None` without
/// memory.
pub(super) fn new_process(pages: ProcessPages) -> Option<(Arc<Process>, Box<Thread>)> {
    if !pages.area().slot_belongs_to(pages.slot(), pages.number()) {
        warning!("process {} has no syscall slot", pages.number());
        return None;
    }
    has_room(PROCESS_BYTES).ok()?;
    let space = kernel_table::with_kernel_table(|kernel| AddressSpace::new(kernel, pages.bounds()));
    let process = Process::new(pages, Mm::new(space.ok()?, pages));
    let slot = Slot::attach(pages.area(), pages.slot());
    let scheduling = (Priority::default(), CoreSet::ALL);
    let (ignored, blocked) = pages.inherited_signals();
    process.signals().ignore(ignored);
    let identity = (pages.pid(), slot);
    let mut thread = Thread::new(Arc::clone(&process), identity, blocked, scheduling).ok()?;
    thread.needs_load = true;
    let is_running = pages.running() != 0;
    process.is_taking_over.store(is_running, Ordering::Release);
    pages.set_page_table(process.space().root().0);
    pages.set_state(process_state::ALIVE);
    Some((process, thread))
}

/// Loads the program of a new process, or takes over a running one. On failure the process exits as a
/// shell would.
pub(crate) fn load_program(mut thread: Box<Thread>) -> Flow {
    thread.needs_load = false;
    if thread.process.pages().running() != 0 {
        return running::take_over(thread);
    }
    Flow::handler(thread, |mut thread| async move {
        if let Err(error) = load(&mut thread).await {
            load_failure::report(&mut thread, error).await;
            thread.exit_process(load_failure::exit_code(error) << 8);
        }
        Flow::Continue(thread)
    })
}

async fn load(thread: &mut Thread) -> Result<(), LoadError> {
    // Reading the base's limits, which determine the layout, already needs a buffer in the
    // program's memory.
    let buffer = thread.map_buffer(PAGE).await?;
    layout::inherit_limits(thread, buffer).await?;
    thread.unmap_buffer(buffer, PAGE).await?;
    let layout = Layout::of(thread);
    let top = layout.map_stack(thread).await?;
    // The lower end of the stack, unused so far, serves as the buffer.
    let buffer = top - STACK_SIZE;
    let mut arguments = read_arguments(thread, buffer).await?;
    mount_servers(thread, &arguments).await?;
    let image = open_program(thread, AT_FDCWD, &mut arguments, buffer).await?;
    load_image(thread, (top, &layout), &arguments, image).await?;
    Ok(layout::trim_stack(thread).await?)
}

/// Loads another program into an empty address space, for execve(2).
///
/// # Errors
/// The thread has no program any more, and must exit.
pub(super) async fn load_replacement(
    thread: &mut Thread,
    arguments: &Arguments,
    image: Image,
) -> Result<(), LoadError> {
    let layout = Layout::of(thread);
    let top = layout.map_stack(thread).await?;
    load_image(thread, (top, &layout), arguments, image).await
}

/// Loads a program, with its stack below `top`.
async fn load_image(
    thread: &mut Thread,
    (top, layout): (u64, &Layout),
    arguments: &Arguments,
    image: Image,
) -> Result<(), LoadError> {
    let buffer = top - STACK_SIZE;
    let executable = path_of(thread, image.file(), buffer).await;
    let program = map_segments(thread, image.program, Some(layout.program())).await?;
    let interpreter = match image.interpreter {
        Some(interpreter) => Some(map_segments(thread, interpreter, None).await?),
        None => None,
    };
    let mut auxiliary_vector = auxiliary_vector(thread, &program, interpreter.as_ref()).await?;
    let area = thread.process.pages().area();
    let object = thread
        .change_space(move |space| Ok(vdso::map(space, area)))
        .await?;
    auxiliary_vector.extend(object.map(|at| (auxiliary::SYSINFO_EHDR, at)));
    let random = random_bytes(thread, buffer).await?;
    let (start, bytes) = initial_stack::build(top, arguments, random, &auxiliary_vector)?;
    save_program_info(thread, (&arguments.path, executable), &auxiliary_vector);
    {
        let mut space = thread.process.space();
        space.write(start, &bytes)?;
        space.set_heap(layout.heap(program.end));
    }
    let registers = &mut thread.context.registers;
    registers.rsp = start;
    registers.rip = interpreter.map_or(program.entry, |interpreter| interpreter.entry);
    Ok(())
}

/// Gets the program's random bytes from the base, and mixes further ones into the kernel's entropy.
async fn random_bytes(thread: &mut Thread, buffer: u64) -> Result<[u8; 16], Errno> {
    let (mut own, mut programs) = ([0; 16], [0; 16]);
    let size = (own.len() + programs.len()) as u64;
    thread
        .remote_syscall(number::GETRANDOM, [buffer, size, 0, 0, 0, 0])
        .await?;
    let mut space = thread.process.space();
    space.read(buffer, &mut programs)?;
    space.read(buffer + programs.len() as u64, &mut own)?;
    random::mix_in(&own);
    Ok(programs)
}

/// Stores what a core file needs, and the program may ask for.
fn save_program_info(
    thread: &Thread,
    (name, executable): (&[u8], Option<Vec<u8>>),
    auxiliary_vector: &[(u64, u64)],
) {
    let end = (auxiliary::NULL, 0);
    let program_info = auxiliary_vector.iter().chain([&end]);
    let auxiliary = program_info.flat_map(|&(kind, value)| [kind, value]);
    *thread.process.program_info.lock() = ProgramInfo {
        name: name.to_vec(),
        executable,
        auxiliary: auxiliary.flat_map(u64::to_le_bytes).collect(),
    };
}

async fn read_arguments(thread: &mut Thread, buffer: u64) -> Result<Arguments, LoadError> {
    let size = thread.process.pages().arguments_size();
    if size > ARGUMENTS_MAX {
        return Err(Errno(7).into()); // E2BIG
    }
    let copied = thread
        .remote_syscall(request::ARGUMENTS, [buffer, size, 0, 0, 0, 0])
        .await?;
    let mut block = zeroed(copied.min(size) as usize)?;
    thread.process.space().read(buffer, &mut block)?;
    Arguments::read(&block).map_err(|error| match error {
        Errno::EINVAL => LoadError::Format(FormatError("its arguments are malformed")),
        error => error.into(),
    })
}

/// Mounts the file servers, and gives it the network server, that the program was started with.
async fn mount_servers(thread: &mut Thread, arguments: &Arguments) -> Result<(), LoadError> {
    if arguments.mounts.count() == 0 {
        return Ok(());
    }
    let mut files = MountedFiles::default();
    for mount in arguments.mounts.iter() {
        let malformed = LoadError::Format(FormatError("one of its mounts is malformed"));
        let equals = mount.iter().rposition(|byte| *byte == b'=');
        let (point, name) = mount.split_at(equals.ok_or(malformed)?);
        let name = &name[1..];
        if !(1..=ENDPOINT_NAME_MAX).contains(&name.len()) {
            return Err(malformed);
        }
        match point {
            b"" => files.network = Some(endpoint_registry::by_name(name.to_vec())),
            point => {
                let point = mount_point(point).ok_or(malformed)?;
                files.mount(Mount::new(point, name.to_vec()));
            }
        }
    }
    files.umask = umask(thread).await?;
    mounted::set(&thread.process, files);
    Ok(())
}

/// Returns the file mode creation mask, which can only be read by setting it.
async fn umask(thread: &mut Thread) -> Result<u64, Errno> {
    const CLOSED: u64 = 0o777;
    let mask = thread.remote_syscall(number::UMASK, [CLOSED; 6]).await?;
    thread
        .remote_syscall(number::UMASK, [mask; 6])
        .await
        .map(|_| mask)
}

/// A program or interpreter in memory.
struct LoadedObject {
    bias: u64,
    entry: u64,
    end: u64,
    program_headers: (u64, u64),
}

/// Maps a file's segments and closes it: at `at` if it is position-independent, or as high as
/// possible without `at`.
async fn map_segments(
    thread: &mut Thread,
    found: OpenFile,
    at: Option<u64>,
) -> Result<LoadedObject, LoadError> {
    let (start, end) = found.program.span();
    let place = match (found.program.is_position_independent, at) {
        (false, _) => Placement::FixedNoReplace(start),
        (true, Some(at)) => Placement::Hint(at),
        (true, None) => Placement::Hint(0),
    };
    // Reserve the whole range first, so that nothing else is mapped between the segments.
    let size = end - start;
    let base = thread
        .change_space(move |space| space.map(place, size, Protection::empty()))
        .await?;
    let bias = base.wrapping_sub(start);
    let program = found.program.relocated_by(bias);
    for segment in &program.segments {
        load_segment(thread, found.file, segment).await?;
    }
    close(thread, found.file).await?;
    Ok(LoadedObject {
        bias,
        entry: program.entry,
        end: program.span().1,
        program_headers: program.program_headers,
    })
}

/// Loads a segment: what the program cannot write is the base's page cache, all else a copy.
async fn load_segment(thread: &mut Thread, file: u64, segment: &Segment) -> Result<(), Errno> {
    let (start, end) = segment.pages();
    let is_in_file = (segment.address + segment.file_size).next_multiple_of(PAGE) == end;
    match segment.protection.contains(Protection::WRITE) || !is_in_file {
        true => copy_segment(thread, file, segment).await,
        false => map_segment(thread, file, segment, (start, end)).await,
    }
}

async fn map_segment(
    thread: &mut Thread,
    file: u64,
    segment: &Segment,
    (start, end): (u64, u64),
) -> Result<(), Errno> {
    const PRIVATE: u64 = 2;
    let mapping = BaseMapping {
        size: end - start,
        protection: segment.protection,
        is_shared: false,
        source: Source::File {
            file,
            offset: segment.offset.wrapping_sub(segment.address - start),
            flags: PRIVATE,
        },
    };
    let place = Placement::Fixed(start);
    thread.map_base(place, mapping).await.map(drop)
}

async fn copy_segment(thread: &mut Thread, file: u64, segment: &Segment) -> Result<(), Errno> {
    let (start, end) = segment.pages();
    let writable = Protection::READ | Protection::WRITE;
    thread
        .change_space(move |space| space.protect(start, end, writable))
        .await?;
    let (address, size) = (segment.address, segment.file_size);
    read_file_into(thread, file, address, segment.offset, size).await?;
    let filled = (address + size).next_multiple_of(PAGE).min(end);
    let protection = segment.protection;
    let may_be_dirty = protection.contains(Protection::WRITE);
    let mut flags = VmaFlags::empty();
    flags.set(VmaFlags::MAY_BE_DIRTY, may_be_dirty);
    let finish = move |space: &mut AddressSpace| {
        if size > 0 {
            space.mark_file((start, filled, filled), flags)?;
        }
        match protection == writable {
            true => Ok(()),
            false => space.protect(start, end, protection),
        }
    };
    thread.change_space(finish).await
}

/// Has the base read a part of a file into the program's memory. What is beyond the file's end
/// stays zero. Returns the number of bytes read.
///
/// # Errors
/// The base's error; [`Errno::ENOMEM`].
pub(crate) async fn read_file_into(
    thread: &mut Thread,
    file: u64,
    address: u64,
    offset: u64,
    size: u64,
) -> Result<u64, Errno> {
    // Populate the whole range, which saves remote faults.
    let end = address.saturating_add(size);
    populate_or_wait(thread, address, end).await?;
    let mut done = 0;
    while done < size {
        let arguments = [file, address + done, size - done, offset + done, 0, 0];
        match thread.remote_syscall(number::PREAD64, arguments).await? {
            0 => break,
            read => done += read.min(size - done),
        }
    }
    Ok(done)
}

/// Populates a range for writing; without free memory, waits for exited programs to be reaped.
async fn populate_or_wait(thread: &mut Thread, start: u64, end: u64) -> Result<(), Errno> {
    loop {
        let populated = thread
            .process
            .space()
            .populate(start, end, Protection::WRITE);
        if populated == Err(Errno::EAGAIN) {
            remote::wait_for_change().await;
            continue;
        }
        if populated != Err(Errno::ENOMEM) {
            thread.memory_wait_since_ns = None;
            return populated;
        }
        if thread.reclaim().await {
            continue;
        }
        if !thread.may_wait_for_memory() {
            thread.memory_wait_since_ns = None;
            return Err(Errno::ENOMEM);
        }
        remote::wait_for_memory().await;
    }
}

/// Returns the stack space that a signal frame needs.
fn frame_size() -> u64 {
    let extended = insula_bare::ExtendedState::new().map_or(0, |state| state.bytes().len());
    (frame::SIZE + extended).next_multiple_of(16) as u64 + frame::SLACK
}

/// Returns the real and the effective id that getresuid(2) or getresgid(2) tells.
async fn real_and_effective(thread: &mut Thread, call: u64) -> Result<(u64, u64), Errno> {
    let at = thread.put_scratch(&[0; 3]).ok_or(Errno::ENOMEM)?;
    let arguments = [at, at + 8, at + 16, 0, 0, 0];
    thread.remote_syscall_as_kernel(call, arguments).await?;
    let [real, effective, ..] = thread.slot.scratch();
    Ok((real, effective))
}

/// Builds the auxiliary vector, except for entries that point to the stack.
async fn auxiliary_vector(
    thread: &mut Thread,
    program: &LoadedObject,
    interpreter: Option<&LoadedObject>,
) -> Result<Vec<(u64, u64)>, Errno> {
    let (uid, euid) = real_and_effective(thread, number::GETRESUID).await?;
    let (gid, egid) = real_and_effective(thread, number::GETRESGID).await?;
    const TICKS_PER_SECOND: u64 = 100;
    const HEADER_SIZE: u64 = 56;
    /// `HWCAP2_FSGSBASE`: programs may use FSGSBASE instructions.
    const HWCAP2_FSGSBASE: u64 = 2;
    let bases = insula_bare::segment_bases::has_fsgsbase();
    Ok(vec![
        (auxiliary::HWCAP, cpu::cpuid(1, 0).edx.into()),
        (auxiliary::PAGESZ, PAGE),
        (auxiliary::CLKTCK, TICKS_PER_SECOND),
        (auxiliary::PHDR, program.program_headers.0),
        (auxiliary::PHENT, HEADER_SIZE),
        (auxiliary::PHNUM, program.program_headers.1),
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
