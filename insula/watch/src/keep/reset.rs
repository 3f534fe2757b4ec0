//! Resetting the machine, from a core that the base does not have.

#![allow(unsafe_code, reason = "ports are reached by instructions only")]

use insula_base::error::Error;
use insula_base::root::Root;
use nix::errno::Errno;
use nix::libc;
use std::arch::asm;
use std::io;
use std::thread::park_timeout;
use std::time::{Duration, Instant};

/// The table of the firmware that names its reset register (ACPI 6.5, 5.2.9).
const FADT: &str = "/sys/firmware/acpi/tables/FACP";
/// Where in it: the flags, the register (a generic address structure), and the value to be written.
const FLAGS_AT: usize = 112;
const REGISTER_AT: usize = 116;
const VALUE_AT: usize = 128;
/// `RESET_REG_SUP` of the flags.
const HAS_REGISTER: u32 = 1 << 10;
/// `SystemIO`: the register is a port.
const IS_PORT: u8 = 1;

/// Reset control register of chipsets, and what is written: a warm reset, which keeps the memory, is
/// chosen, then made.
const RESET_CONTROL: u16 = 0xcf9;
const CHOOSE_WARM: u8 = 0x02;
const MAKE_WARM: u8 = 0x06;
/// Keyboard controller, and its command that pulses the reset line.
const KEYBOARD: u16 = 0x64;
const PULSE_RESET: u8 = 0xfe;
/// Time that a machine has to be reset by one of them.
const WAIT: Duration = Duration::from_millis(500);

/// Bytes that are written to a port, one after another.
type Way = (u16, Vec<u8>);

/// Ways to reset the machine, which this thread may use: the first is tried first.
#[derive(Debug)]
pub struct MachineReset {
    ways: Vec<Way>,
}

impl MachineReset {
    /// Has this thread be able to reset the machine by itself, without a call of the base.
    ///
    /// # Errors
    /// When it may not: for want of `CAP_SYS_RAWIO`, by lockdown, or as the node was not given the right.
    pub fn prepare(root: &Root) -> Result<Self, Error> {
        let mut ways = vec![(RESET_CONTROL, vec![CHOOSE_WARM, MAKE_WARM])];
        let table = std::fs::read(root.path(FADT)).unwrap_or_default();
        ways.extend(of_firmware(&table));
        ways.push((KEYBOARD, vec![PULSE_RESET]));
        let denied = |ways: &[Way]| {
            let denied = ways.iter().find_map(|(port, _)| permit(*port).err());
            denied.map_or(Ok(()), Err)
        };
        // The firmware may name a port that no program can have: then there are the others.
        ways.retain(|(port, _)| [RESET_CONTROL, KEYBOARD].contains(port) || permit(*port).is_ok());
        denied(&ways).map_err(|source| {
            Error::new("this program may not reset the machine")
                .because(source)
                .untouched()
                .hint(
                    "it needs CAP_SYS_RAWIO and a kernel without lockdown, and on a node of the \
                     lightweight kernel `insula run --allow-ioperm`",
                )
        })?;
        Ok(Self { ways })
    }

    /// Resets the machine.
    ///
    /// # Errors
    /// When it still runs afterwards.
    pub fn reset(&self) -> Result<(), Error> {
        for (port, values) in &self.ways {
            for value in values {
                write_port(*port, *value);
            }
            rest(WAIT);
        }
        Err(Error::new("the machine was not reset")
            .because("it still runs after all that is known"))
    }
}

/// What the firmware says.
fn of_firmware(table: &[u8]) -> Option<Way> {
    let flags = u32::from_le_bytes(*table.get(FLAGS_AT..)?.first_chunk()?);
    let [space, _, _, _, address @ ..] = table.get(REGISTER_AT..)?.first_chunk::<12>()?;
    let port = u16::try_from(u64::from_le_bytes(*address)).ok()?;
    let is_port = flags & HAS_REGISTER != 0 && *space == IS_PORT && port != 0;
    Some((port, vec![*table.get(VALUE_AT)?])).filter(|(port, _)| is_port && *port != RESET_CONTROL)
}

/// Has this thread be permitted to use a port.
fn permit(port: u16) -> io::Result<()> {
    // SAFETY: the call only changes which ports this thread may use.
    let result = unsafe { libc::syscall(libc::SYS_ioperm, libc::c_ulong::from(port), 1_usize, 1) };
    Ok(Errno::result(result).map(drop)?)
}

/// Writes a byte to a port that is permitted ([`permit`]).
fn write_port(port: u16, value: u8) {
    // SAFETY: the instruction accesses no memory; this thread may execute it, else it gets a signal.
    unsafe { asm!("out dx, al", in("dx") port, in("al") value, options(nomem, nostack)) }
}

/// Waits by a futex, which the lightweight kernel does not delegate.
fn rest(time: Duration) {
    let begin = Instant::now();
    while let Some(left) = time.checked_sub(begin.elapsed()) {
        park_timeout(left.max(Duration::from_micros(1)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(flags: u32, space: u8, address: u64, value: u8) -> Vec<u8> {
        let mut table = vec![0; 276];
        table[FLAGS_AT..][..4].copy_from_slice(&flags.to_le_bytes());
        table[REGISTER_AT] = space;
        table[REGISTER_AT + 4..][..8].copy_from_slice(&address.to_le_bytes());
        table[VALUE_AT] = value;
        table
    }

    #[test]
    fn the_firmwares_register_is_used_if_it_is_a_port() {
        let of = |flags, space, address| of_firmware(&table(flags, space, address, 0x0f));
        assert_eq!(of(HAS_REGISTER, IS_PORT, 0xb2), Some((0xb2, vec![0x0f])));
        // That one is tried in any case, by a warm reset.
        assert_eq!(of(HAS_REGISTER, IS_PORT, 0xcf9), None);
        assert_eq!(of(0, IS_PORT, 0xb2), None);
        assert_eq!(of(HAS_REGISTER, 0, 0xb2), None);
        assert_eq!(of(HAS_REGISTER, IS_PORT, 0x1_00b2), None);
        assert_eq!(
            of_firmware(&table(HAS_REGISTER, IS_PORT, 0xb2, 1)[..128]),
            None
        );
        assert_eq!(of_firmware(&[]), None);
    }
}
