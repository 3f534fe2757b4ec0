//! What images describe, as far as it decides how they are restored (CRIU's `images/*.proto`).

use std::collections::BTreeSet;

use super::CheckpointError;
use super::folder::Folder;
use super::image::{CORE, FILES, IDS, INVENTORY, Image, Kind, PAGE_MAP, PROCESSES};
use super::wire::{Malformed, Message};

/// Version of the format that CRIU writes since 2014: 1.1.
const FORMAT: u64 = 2;
/// Most processes, and the largest id that one can have (kernel: `PID_MAX_LIMIT`).
const PROCESSES_MAX: usize = 1 << 15;
const PID_MAX: u64 = 1 << 22;
/// Machine of the registers: x86-64.
const X86_64: u64 = 1;
/// States of a process that has ended: dead, and a zombie.
const ENDED: [u64; 2] = [2, 6];
/// Bytes of a page.
const PAGE: u64 = 4096;
/// Flags of a range of pages: it is in another dump, or in this one.
const IN_PARENT: u64 = 1;
const PRESENT: u64 = 4;
/// Kinds of open files up to that of CRIU 4.2: `PIDFD`.
const FILE_KIND_MAX: u64 = 20;
/// Fields of the inventory, of a process's ids, of a process and of a file, up to those of CRIU 4.2.
const INVENTORY_MAX: u32 = 14;
const IDS_MAX: u32 = 12;
const PROCESS_MAX: u32 = 5;
const FILE_MAX: u32 = 22;
/// Fields of a process's ids: namespaces that a container has of its own (pid, net, ipc, uts, mount), and those
/// that it has not (user, control group). One of time it has once CRIU has restored it.
const OWN: [u32; 5] = [5, 6, 7, 8, 9];
const SHARED: [u32; 2] = [10, 11];
/// Beginnings of the names of images.
const CONNECTION: &str = "tcp-stream-";
const PAGE_MAPS: [&str; 2] = ["pagemap-shmem-", "pagemap-"];

/// How processes are restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As a whole container, with its namespaces.
    Container,
    /// As a tree of processes in the namespaces of a new container: those of plain CRIU had none of
    /// their own.
    Tree,
}

/// What there is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Contents {
    /// How it was dumped; neither way if it has some namespaces of its own only.
    form: Option<Form>,
    pub(super) has_connections: bool,
}

impl Contents {
    /// Reads and checks images.
    pub(super) fn read(folder: &Folder, images: &[String]) -> Result<Self, CheckpointError> {
        let dumper = inventory(folder)?;
        let mut form = None;
        for (number, pid) in processes(folder)?.into_iter().enumerate() {
            let own = form_of(folder, pid, &dumper)?;
            form = match number {
                0 => own,
                // Each is where the first is: none lies outside.
                _ => form.filter(|_| own == form),
            };
        }
        if images.iter().any(|name| name == "files.img") {
            files(folder)?;
        }
        for name in images {
            if PAGE_MAPS.iter().any(|start| name.starts_with(start)) {
                pages(folder, name)?;
            }
        }
        Ok(Self {
            form,
            has_connections: images.iter().any(|name| name.starts_with(CONNECTION)),
        })
    }

    /// Checks that they can be restored: a container of Insula as one, and any other processes as a tree.
    pub(super) fn check_form(&self, is_container: bool) -> Result<(), CheckpointError> {
        let told = match (self.form, is_container) {
            (Some(Form::Container), true) | (Some(Form::Tree), false) => return Ok(()),
            (_, true) => "its processes are not in a container of their own",
            (Some(Form::Container), false) => {
                "its processes are those of a container of which `container.json` is missing"
            }
            (None, false) => "its processes have namespaces of their own",
        };
        Err(CheckpointError::Unsupported(told.to_owned()))
    }
}

/// Reads the only message of an image.
fn one<T>(
    folder: &Folder,
    (name, kind): (&str, Kind),
    read: impl FnOnce(&Image<'_>, &Message<'_>) -> Result<T, CheckpointError>,
) -> Result<T, CheckpointError> {
    let image = Image::read(folder, name, kind)?;
    let message = image.message()?;
    read(&image, &message)
}

/// The namespaces of the CRIU that has written them.
fn inventory(folder: &Folder) -> Result<Vec<Option<u64>>, CheckpointError> {
    one(folder, ("inventory.img", INVENTORY), |image, message| {
        let wrong = |fault: Malformed| image.damaged(fault);
        match message.required(1).map_err(wrong)? {
            FORMAT => {}
            other => return Err(unknown(image, &format!("format {other}"))),
        }
        check_fields(image, message, INVENTORY_MAX)?;
        let ids = message.message(3).map_err(wrong)?;
        let ids = ids.ok_or_else(|| image.damaged(Malformed::Missing(3)))?;
        namespaces(image, &ids)
    })
}

/// Namespaces of a process, by [`OWN`] and [`SHARED`].
fn namespaces(image: &Image<'_>, ids: &Message<'_>) -> Result<Vec<Option<u64>>, CheckpointError> {
    check_fields(image, ids, IDS_MAX)?;
    let fields = OWN.into_iter().chain(SHARED);
    let ids: Result<_, _> = fields.map(|field| ids.number(field)).collect();
    ids.map_err(|fault| image.damaged(fault))
}

/// Where a process lies, if that is all in one place.
fn form_of(
    folder: &Folder,
    pid: u64,
    dumper: &[Option<u64>],
) -> Result<Option<Form>, CheckpointError> {
    let name = format!("ids-{pid}.img");
    let ids = one(folder, (&name, IDS), namespaces)?;
    let (own, shared) = ids.split_at(OWN.len());
    let (dumper_own, dumper_shared) = dumper.split_at(OWN.len());
    let is_whole = own.iter().chain(dumper_own).all(Option::is_some);
    if !is_whole || shared != dumper_shared {
        return Ok(None);
    }
    let same = own
        .iter()
        .zip(dumper_own)
        .filter(|(one, other)| one == other);
    Ok(match same.count() {
        0 => Some(Form::Container),
        count if count == OWN.len() => Some(Form::Tree),
        _ => None,
    })
}

/// Ids of all processes that have not ended, the first of the tree first.
fn processes(folder: &Folder) -> Result<Vec<u64>, CheckpointError> {
    let image = Image::read(folder, "pstree.img", PROCESSES)?;
    let messages = image.messages()?;
    if messages.is_empty() || messages.len() > PROCESSES_MAX {
        return Err(image.damaged(format!("it has {} processes", messages.len())));
    }
    let (mut pids, mut seen) = (Vec::new(), BTreeSet::new());
    for message in &messages {
        let wrong = |fault: Malformed| image.damaged(fault);
        check_fields(&image, message, PROCESS_MAX)?;
        let pid = message.required(1).map_err(wrong)?;
        let parent = message.required(2).map_err(wrong)?;
        if !(1..=PID_MAX).contains(&pid) || !seen.insert(pid) {
            return Err(image.damaged(format!("the process id {pid}")));
        }
        // The first has none in the dump, all others have one that came before.
        if seen.len() == 1 && parent != 0
            || seen.len() > 1 && (parent == pid || !seen.contains(&parent))
        {
            return Err(image.damaged(format!("process {pid} has no parent")));
        }
        for thread in message.numbers(5).map_err(wrong)? {
            thread_state(folder, thread)?;
        }
        // One that has ended has no namespaces any more.
        match thread_state(folder, pid)? {
            Some(state) if ENDED.contains(&state) && seen.len() > 1 => {}
            _ => pids.push(pid),
        }
    }
    Ok(pids)
}

/// State of a process, by its first thread. Checks that the thread's registers are those of such a processor.
fn thread_state(folder: &Folder, thread: u64) -> Result<Option<u64>, CheckpointError> {
    let name = format!("core-{thread}.img");
    one(folder, (&name, CORE), |image, message| {
        let wrong = |fault: Malformed| image.damaged(fault);
        match message.required(1).map_err(wrong)? {
            X86_64 => {}
            other => return Err(unknown(image, &format!("processors of kind {other}"))),
        }
        let process = message.message(3).map_err(wrong)?;
        let state = process.map(|process| process.number(1)).transpose();
        Ok(state.map_err(wrong)?.flatten())
    })
}

/// Checks the kinds of open files.
fn files(folder: &Folder) -> Result<(), CheckpointError> {
    let image = Image::read(folder, "files.img", FILES)?;
    for message in image.messages()? {
        check_fields(&image, &message, FILE_MAX)?;
        match message.required(1).map_err(|fault| image.damaged(fault))? {
            kind if kind <= FILE_KIND_MAX => {}
            kind => return Err(unknown(&image, &format!("files of kind {kind}"))),
        }
    }
    Ok(())
}

/// Checks that all pages are there that a process or a shared memory has.
fn pages(folder: &Folder, name: &str) -> Result<(), CheckpointError> {
    let image = Image::read(folder, name, PAGE_MAP)?;
    let messages = image.messages()?;
    let wrong = |fault: Malformed| image.damaged(fault);
    let (head, ranges) = messages
        .split_first()
        .ok_or_else(|| image.damaged("it is empty"))?;
    let file = head.required(1).map_err(wrong)?;
    let mut present: u64 = 0;
    for range in ranges {
        let count = match range.number(5).map_err(wrong)? {
            Some(count) => count,
            None => range.required(2).map_err(wrong)?,
        };
        let flags = range.number(4).map_err(wrong)?.unwrap_or(PRESENT);
        let in_parent = range.number(3).map_err(wrong)?.unwrap_or(0) != 0;
        if in_parent || flags & IN_PARENT != 0 {
            return Err(unknown(&image, "pages of an earlier dump"));
        }
        if flags & PRESENT != 0 {
            let more = present
                .checked_add(count)
                .filter(|all| *all < u64::MAX / PAGE);
            present = more.ok_or_else(|| image.damaged("more pages than there can be"))?;
        }
    }
    if present == 0 {
        return Ok(());
    }
    let pages = format!("pages-{file}.img");
    let (_, size) = folder.file(&pages)?;
    match size < present * PAGE {
        true => Err(CheckpointError::Damaged {
            name: pages,
            fault: format!("it ends after {size} of {} bytes", present * PAGE),
        }),
        false => Ok(()),
    }
}

/// Checks that a message has no field that is newer than this: CRIU ignores those, and with them what they
/// tell of a process.
fn check_fields(image: &Image<'_>, message: &Message<'_>, max: u32) -> Result<(), CheckpointError> {
    match message.largest() {
        field if field <= max => Ok(()),
        field => Err(unknown(image, &format!("a field {field}"))),
    }
}

fn unknown(image: &Image<'_>, what: &str) -> CheckpointError {
    CheckpointError::Unsupported(format!(
        "{} has {what}, which this Insula does not know",
        image.name()
    ))
}
