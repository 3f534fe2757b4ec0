//! System calls that are refused by seccomp.

use std::env::consts::ARCH;

use insula_base::error::Error;
use nix::libc;
use seccompiler::{BackendError, BpfProgram, SeccompAction, SeccompFilter, TargetArch};

use super::failed;

/// Calls that neither a supervisor nor any device server makes: those that change the kernel, the
/// machine or its clock, access other processes, or have a large attack surface. They fail with
/// EPERM, as without the privilege.
pub(super) const REFUSED: &[libc::c_long] = &[
    // Kernel and machine.
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_syslog,
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_modify_ldt,
    libc::SYS_vhangup,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    // Clock.
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_adjtimex,
    libc::SYS_clock_adjtime,
    // Other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_move_pages,
    libc::SYS_migrate_pages,
    libc::SYS_setns,
    // Large attack surfaces that are not needed here.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_fanotify_init,
];

/// Calls refused to a disk server in addition: it gets its connection, opens its disk and makes no
/// other.
pub(super) const REFUSED_TO_DISK_SERVER: &[libc::c_long] = &[
    libc::SYS_socket,
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_unshare,
    libc::SYS_fsopen,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_open_by_handle_at,
    libc::SYS_mknod,
    libc::SYS_mknodat,
];

/// Builds the filter that refuses these calls, and kills a process that makes a call of another
/// architecture.
pub(super) fn filter(refused: &[libc::c_long]) -> Result<BpfProgram, Error> {
    build(refused).map_err(failed("making a filter of system calls"))
}

fn build(refused: &[libc::c_long]) -> Result<BpfProgram, BackendError> {
    let rules = refused.iter().map(|call| (*call, Vec::new())).collect();
    let filter = SeccompFilter::new(
        rules,
        SeccompAction::Allow,
        SeccompAction::Errno(libc::EPERM.unsigned_abs()),
        TargetArch::try_from(ARCH)?,
    )?;
    BpfProgram::try_from(filter)
}
