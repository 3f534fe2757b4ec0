//! Taking another identity: what a copy of a node has to have of its own.

use std::fs;
use std::io;
use std::path::Path;

use insula_agent::{Identity, Renamed};

use crate::{clock, interfaces};

/// Where programs look for the machine id.
const MACHINE_ID: &str = "/etc/machine-id";
/// Most bytes that are added to the kernel's random numbers at once.
const SEED_MAX: usize = 512;

/// Takes an identity, as far as it can: each part by itself.
pub(crate) fn rename(identity: &Identity) -> Renamed {
    let parts = [
        ("random numbers", reseed(&identity.seed)),
        ("the clock", clock::set(identity.unix_ns)),
        ("the host name", set_host(&identity.host)),
        (
            "the machine id",
            set_machine(Path::new(MACHINE_ID), &identity.machine),
        ),
        (
            "the network card",
            identity.address.map_or(Ok(()), interfaces::readdress),
        ),
    ];
    let failed = parts.into_iter().filter_map(|(what, result)| {
        let error = result.err()?;
        Some(format!("{what}: {error}"))
    });
    Renamed {
        errors: failed.collect(),
    }
}

/// Adds random bytes to those of the kernel, and has it use them at once: until then it generates the
/// same numbers as all other copies.
fn reseed(seed: &[u8]) -> io::Result<()> {
    let random = fs::OpenOptions::new().write(true).open("/dev/urandom")?;
    entropy::add(&random, &seed[..seed.len().min(SEED_MAX)])?;
    Ok(entropy::reseed(&random)?)
}

fn set_host(host: &str) -> io::Result<()> {
    Ok(rustix::system::sethostname(host.as_bytes())?)
}

/// A root without that file, or its folder, has programs that do not know of it.
fn set_machine(path: &Path, id: &str) -> io::Result<()> {
    if path.parent().is_none_or(|folder| !folder.exists()) {
        return Ok(());
    }
    // Replaced as a whole: nobody reads a part of it.
    let new = path.with_extension("new");
    fs::write(&new, format!("{id}\n"))?;
    fs::rename(new, path)
}

/// Requests of `/dev/urandom` (include/uapi/linux/random.h of Linux).
#[allow(unsafe_code, reason = "the requests have no safe names")]
mod entropy {
    use std::fs::File;

    use rustix::io::Errno;
    use rustix::ioctl::{NoArg, Setter, ioctl, opcode};

    use super::SEED_MAX;

    /// `struct rand_pool_info`.
    #[repr(C)]
    struct PoolInfo {
        bits: i32,
        size: i32,
        bytes: [u8; SEED_MAX],
    }

    const ADD: u32 = opcode::write::<[i32; 2]>(b'R', 3);
    const RESEED: u32 = opcode::none(b'R', 7);

    /// `RNDADDENTROPY`: adds bytes, all of which are random.
    pub(super) fn add(random: &File, seed: &[u8]) -> Result<(), Errno> {
        let mut bytes = [0; SEED_MAX];
        bytes[..seed.len()].copy_from_slice(seed);
        let info = PoolInfo {
            bits: seed.len() as i32 * 8,
            size: seed.len() as i32,
            bytes,
        };
        // SAFETY: it is this request's structure, and `bytes` is as long as it says.
        unsafe { ioctl(random, Setter::<ADD, PoolInfo>::new(info)) }
    }

    /// `RNDRESEEDCRNG`: has the generator use them.
    pub(super) fn reseed(random: &File) -> Result<(), Errno> {
        // SAFETY: the request has no argument.
        unsafe { ioctl(random, NoArg::<RESEED>::new()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_id_is_replaced_where_there_can_be_one() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("machine-id");
        for id in ["one", "two"] {
            set_machine(&path, id).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), format!("{id}\n"));
        }
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
        set_machine(&root.path().join("no/machine-id"), "three").unwrap();
    }
}
