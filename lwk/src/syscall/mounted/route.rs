//! Which calls concern a server.

use alloc::boxed::Box;
use alloc::sync::Arc;

use crate::model::errno::Errno;
use crate::model::number as call;
use crate::syscall::delegate::finish;
use crate::syscall::mounted::routed::{Arguments, Routed};
use crate::syscall::mounted::target::{AT_FDCWD, Place, Target};
use crate::syscall::mounted::{
    content, descriptors, directory, locks, map, names, open, status, target,
};
use crate::task::flow::Flow;
use crate::task::mounted::{self, Description, MountedFiles};
use crate::task::thread::Thread;

/// Deals with a call on a path.
type OnPath = fn(Box<Thread>, Target, Arguments) -> Flow;
/// Deals with a call on an open file.
type OnFile = fn(Box<Thread>, Arc<Description>, Arguments) -> Flow;

/// How a call names what it is about.
enum About {
    /// By a path, at the second index, from a directory at the first; none: the current one.
    Path(Option<usize>, usize, OnPath),
    /// By a path likewise, or an open file if the path is empty or 0 and flags at the third index, or
    /// always, allow that.
    PathOrFile(usize, usize, Option<usize>, OnPath, OnFile),
    /// By the descriptor at index 0.
    File(OnFile),
    /// By two paths, as the first, each: of them both or none is of the same server.
    Paths([(Option<usize>, usize); 2], names::OnPaths),
    /// Something else.
    Process(fn(Box<Thread>, u64, Arguments) -> Routed),
}

/// Deals with a call of a process that has servers mounted.
pub(crate) fn route(thread: Box<Thread>, number: u64, arguments: Arguments) -> Routed {
    let (Some(about), Some(files)) = (about(number), mounted::files(&thread.process)) else {
        return Routed::Base(thread);
    };
    let found = find(&thread, &files, &about, arguments);
    match (found, about) {
        (Err(error), _) => Routed::Server(finish(thread, Err(error))),
        (Ok(Found::Base), About::Process(act)) => act(thread, number, arguments),
        (Ok(Found::Base), _) if number == call::CHDIR => {
            directory::leave(thread, number, arguments)
        }
        (Ok(Found::Base), _) => Routed::Base(thread),
        (Ok(Found::Path(target)), About::Path(_, _, act) | About::PathOrFile(_, _, _, act, _)) => {
            Routed::Server(act(thread, target, arguments))
        }
        (Ok(Found::File(file)), About::File(act) | About::PathOrFile(_, _, _, _, act)) => {
            Routed::Server(act(thread, file, arguments))
        }
        (Ok(Found::Paths(one, two)), About::Paths(_, act)) => {
            Routed::Server(act(thread, one, two, arguments))
        }
        (Ok(_), _) => Routed::Base(thread),
    }
}

/// What a call is about.
enum Found {
    Path(Target),
    File(Arc<Description>),
    Paths(Target, Target),
    Base,
}

fn find(
    thread: &Thread,
    files: &spin::Mutex<MountedFiles>,
    about: &About,
    arguments: Arguments,
) -> Result<Found, Errno> {
    let from = |index: Option<usize>| index.map_or(AT_FDCWD, |index| arguments[index]);
    let path = |(directory, index): (Option<usize>, usize)| {
        let path = target::read(thread, arguments[index])?;
        target::find(&files.lock(), from(directory), path)
    };
    let found_path = |place: Place| match place {
        Place::Server(target) => Found::Path(target),
        Place::Base => Found::Base,
    };
    let file = |fd: u64| {
        let files = files.lock();
        files.file(fd)
    };
    Ok(match about {
        About::Process(_) => Found::Base,
        About::File(_) => file(arguments[0]).map_or(Found::Base, Found::File),
        About::Path(directory, index, _) => found_path(path((*directory, *index))?),
        About::PathOrFile(directory, index, flags, ..) => {
            /// `AT_EMPTY_PATH`.
            const EMPTY: u64 = 0x1000;
            let may_be_empty = flags.is_none_or(|flags| arguments[flags] & EMPTY != 0);
            let address = arguments[*index];
            let is_empty =
                may_be_empty && (address == 0 || target::read(thread, address)?.is_empty());
            match is_empty {
                true => file(arguments[*directory]).map_or(Found::Base, Found::File),
                false => found_path(path((Some(*directory), *index))?),
            }
        }
        About::Paths([one, two], _) => match (path(*one)?, path(*two)?) {
            (Place::Server(one), Place::Server(two)) if Arc::ptr_eq(&one.mount, &two.mount) => {
                Found::Paths(one, two)
            }
            (Place::Base, Place::Base) => Found::Base,
            _ => return Err(Errno::EXDEV),
        },
    })
}

/// Returns how a call names what it is about; `None` if it is never about files.
fn about(number: u64) -> Option<About> {
    use About::{File, Path, PathOrFile, Paths, Process};
    const HERE: Option<usize> = None;
    const AT: Option<usize> = Some(0);
    Some(match number {
        call::READ => File(content::read),
        call::WRITE => File(content::write),
        call::PREAD64 => File(content::read_at),
        call::PWRITE64 => File(content::write_at),
        call::READV => File(content::read_vector),
        call::WRITEV => File(content::write_vector),
        call::PREADV | call::PREADV2 => File(content::read_vector_at),
        call::PWRITEV | call::PWRITEV2 => File(content::write_vector_at),
        call::LSEEK => File(content::seek),
        call::FSYNC | call::SYNCFS => File(content::sync),
        call::FDATASYNC => File(content::sync_data),
        call::FTRUNCATE => File(content::truncate),
        call::FALLOCATE => File(content::allocate),
        call::FADVISE64 | call::READAHEAD | call::SYNC_FILE_RANGE => File(content::nothing),
        call::SENDFILE | call::SPLICE => File(content::invalid),
        call::COPY_FILE_RANGE => File(content::across),
        call::IOCTL => File(content::no_terminal),
        call::FLOCK => File(locks::whole),
        call::MMAP => Process(map::map),
        call::MSYNC => Process(map::sync),
        call::OPEN => Path(HERE, 0, open::open),
        call::CREAT => Path(HERE, 0, open::create),
        call::OPENAT => Path(AT, 1, open::open_at),
        call::OPENAT2 => Path(AT, 1, open::open_as),
        call::STAT => Path(HERE, 0, status::stat),
        call::LSTAT => Path(HERE, 0, status::link_stat),
        call::FSTAT => File(status::file_stat),
        call::NEWFSTATAT => PathOrFile(0, 1, Some(3), status::stat_at, status::file_stat_at),
        call::STATX => PathOrFile(0, 1, Some(2), status::statx, status::file_statx),
        call::ACCESS => Path(HERE, 0, status::access),
        call::FACCESSAT => Path(AT, 1, status::access_at),
        call::FACCESSAT2 => Path(AT, 1, status::access_at_with),
        call::STATFS => Path(HERE, 0, status::statfs),
        call::FSTATFS => File(status::file_statfs),
        call::CHMOD => Path(HERE, 0, status::chmod),
        call::FCHMOD => File(status::file_chmod),
        call::FCHMODAT => Path(AT, 1, status::chmod_at),
        call::FCHMODAT2 => Path(AT, 1, status::chmod_at_with),
        call::CHOWN => Path(HERE, 0, status::chown),
        call::LCHOWN => Path(HERE, 0, status::link_chown),
        call::FCHOWN => File(status::file_chown),
        call::FCHOWNAT => PathOrFile(0, 1, Some(4), status::chown_at, status::file_chown_at),
        call::UTIME => Path(HERE, 0, status::utime),
        call::UTIMES => Path(HERE, 0, status::utimes),
        call::FUTIMESAT => Path(AT, 1, status::utimes_at),
        call::UTIMENSAT => PathOrFile(0, 1, None, status::utimens, status::file_utimens),
        call::TRUNCATE => Path(HERE, 0, content::truncate_path),
        call::MKDIR => Path(HERE, 0, names::mkdir),
        call::MKDIRAT => Path(AT, 1, names::mkdir_at),
        call::RMDIR => Path(HERE, 0, names::rmdir),
        call::UNLINK => Path(HERE, 0, names::unlink),
        call::UNLINKAT => Path(AT, 1, names::unlink_at),
        call::RENAME => Paths([(HERE, 0), (HERE, 1)], names::rename),
        call::RENAMEAT => Paths([(AT, 1), (Some(2), 3)], names::rename),
        call::RENAMEAT2 => Paths([(AT, 1), (Some(2), 3)], names::rename_with),
        call::LINK => Paths([(HERE, 0), (HERE, 1)], names::link),
        call::LINKAT => Paths([(AT, 1), (Some(2), 3)], names::link_at),
        call::SYMLINK => Path(HERE, 1, names::symlink),
        call::SYMLINKAT => Path(Some(1), 2, names::symlink),
        call::READLINK => Path(HERE, 0, names::read_link),
        call::READLINKAT => Path(AT, 1, names::read_link_at),
        call::GETDENTS64 => File(directory::list),
        call::CHDIR => Path(HERE, 0, directory::enter),
        call::FCHDIR => Process(directory::change),
        call::GETCWD => Process(directory::current),
        call::UMASK => Process(directory::umask),
        call::MKNOD => Path(HERE, 0, names::forbidden),
        call::MKNODAT => Path(AT, 1, names::forbidden),
        call::CHROOT => Path(HERE, 0, names::forbidden),
        call::INOTIFY_ADD_WATCH => Path(HERE, 1, names::unsupported),
        call::SETXATTR | call::LSETXATTR | call::GETXATTR | call::LGETXATTR => {
            Path(HERE, 0, names::unsupported)
        }
        call::LISTXATTR | call::LLISTXATTR | call::REMOVEXATTR | call::LREMOVEXATTR => {
            Path(HERE, 0, names::unsupported)
        }
        call::FSETXATTR | call::FGETXATTR | call::FLISTXATTR | call::FREMOVEXATTR => {
            File(content::unsupported)
        }
        call::EXECVE => Path(HERE, 0, names::denied),
        call::EXECVEAT => Path(AT, 1, names::denied),
        call::CLOSE => Process(descriptors::close),
        call::CLOSE_RANGE => Process(descriptors::close_range),
        call::DUP | call::DUP2 | call::DUP3 => Process(descriptors::duplicate),
        call::FCNTL => File(descriptors::control),
        _ => return None,
    })
}
