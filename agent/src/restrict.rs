//! Restricting a program before it is executed: what a container's configuration says.

use std::fs;
use std::io;

use insula_agent::restrictions::{Capabilities, Limit, Restrictions};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, setrlimit, umask};
use rustix::thread::{
    CapabilitySet, CapabilitySets, clear_ambient_capability_set,
    configure_capability_in_ambient_set, remove_capability_from_bounding_set, set_capabilities,
    set_keep_capabilities, set_no_new_privs,
};

const OOM_SCORE_ADJ: &str = "/proc/self/oom_score_adj";
/// A limit that is none.
const UNLIMITED: u64 = u64::MAX;

/// Restricts this process by what takes root's privileges, before it becomes another user. It must have one thread.
///
/// # Errors
/// When the kernel refuses it.
pub(crate) fn as_root(to: &Restrictions) -> io::Result<()> {
    if let Some(adjustment) = to.oom_score_adj {
        fs::write(OOM_SCORE_ADJ, adjustment.to_string())?;
    }
    to.limits.iter().try_for_each(limit)?;
    if let Some(capabilities) = &to.capabilities {
        for one in all().filter(|one| capabilities.bounding & one.bits() == 0) {
            match remove_capability_from_bounding_set(one) {
                // This kernel does not know it.
                Ok(()) | Err(Errno::INVAL) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        set_keep_capabilities(true)?;
    }
    Ok(())
}

/// Restricts it by the rest, as the user that it has become.
///
/// # Errors
/// When the kernel refuses it.
pub(crate) fn as_user(to: &Restrictions) -> io::Result<()> {
    to.capabilities.as_ref().map_or(Ok(()), keep_only)?;
    if let Some(mask) = to.umask {
        umask(Mode::from_raw_mode(mask));
    }
    match to.no_new_privileges {
        true => Ok(set_no_new_privs(true)?),
        false => Ok(()),
    }
}

fn keep_only(kept: &Capabilities) -> io::Result<()> {
    let known = known();
    let set = |bits: u64| CapabilitySet::from_bits_retain(bits) & known;
    set_capabilities(
        None,
        CapabilitySets {
            effective: set(kept.effective),
            permitted: set(kept.permitted),
            inheritable: set(kept.inheritable),
        },
    )?;
    clear_ambient_capability_set()?;
    // The kernel refuses others.
    let ambient = set(kept.ambient & kept.permitted & kept.inheritable);
    for one in ambient.iter() {
        configure_capability_in_ambient_set(one, true)?;
    }
    Ok(())
}

/// Every capability that a kernel may know.
fn all() -> impl Iterator<Item = CapabilitySet> {
    (0..u64::BITS).map(|number| CapabilitySet::from_bits_retain(1 << number))
}

/// Those that this kernel does.
fn known() -> CapabilitySet {
    let is_known =
        |one: &CapabilitySet| rustix::thread::capability_is_in_bounding_set(*one).is_ok();
    all()
        .filter(is_known)
        .fold(CapabilitySet::empty(), |known, one| known | one)
}

fn limit(limit: &Limit) -> io::Result<()> {
    let resource = resource(&limit.resource).ok_or(io::ErrorKind::InvalidInput)?;
    let value = |limit: u64| (limit != UNLIMITED).then_some(limit);
    let limits = Rlimit {
        current: value(limit.soft),
        maximum: value(limit.hard),
    };
    setrlimit(resource, limits)
        .map_err(|errno| io::Error::other(format!("{}: {errno}", limit.resource)))
}

fn resource(name: &str) -> Option<Resource> {
    Some(match name {
        "RLIMIT_CPU" => Resource::Cpu,
        "RLIMIT_FSIZE" => Resource::Fsize,
        "RLIMIT_DATA" => Resource::Data,
        "RLIMIT_STACK" => Resource::Stack,
        "RLIMIT_CORE" => Resource::Core,
        "RLIMIT_RSS" => Resource::Rss,
        "RLIMIT_NPROC" => Resource::Nproc,
        "RLIMIT_NOFILE" => Resource::Nofile,
        "RLIMIT_MEMLOCK" => Resource::Memlock,
        "RLIMIT_AS" => Resource::As,
        "RLIMIT_LOCKS" => Resource::Locks,
        "RLIMIT_SIGPENDING" => Resource::Sigpending,
        "RLIMIT_MSGQUEUE" => Resource::Msgqueue,
        "RLIMIT_NICE" => Resource::Nice,
        "RLIMIT_RTPRIO" => Resource::Rtprio,
        "RLIMIT_RTTIME" => Resource::Rttime,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use insula_agent::restrictions::LIMITS;

    use super::*;

    #[test]
    fn every_limit_is_known() {
        for name in LIMITS {
            assert!(resource(name).is_some(), "{name}");
        }
        assert!(resource("RLIMIT_OTHER").is_none());
    }
}
