//! A virtual machine beside the nodes, which talks to the base through its sockets.

use std::io::{self, Read, Write};
use std::process::Command;
use std::time::{Duration, Instant};

use testbed::equipment::PEER_INITRD_PATH;
use testbed::scenario::Finding;
use testbed::socket_peer::{LISTENS, PORT};
use vsock::VsockStream;

use super::Inside;
use crate::microvm::{Executor, Microvm, Running};

/// Its address. 2 is the base's, those below are not machines'.
const CID: u32 = 3;
/// How long its answer may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// Who listens is heard of a moment earlier than whoever connects is accepted.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);

/// A guest of KVM with one core, its program at the other end of a socket (AF_VSOCK) that vhost
/// serves: how a kernel beside the base is talked to today.
pub struct Guest {
    socket: VsockStream,
    _machine: Running,
}

impl Guest {
    /// Starts one with a kernel of that version, its processor on that core, which should have
    /// nothing else to do.
    ///
    /// # Errors
    /// When it does not start, or does not listen.
    pub fn start(inside: &Inside, version: &str, core: usize) -> Result<Self, Finding> {
        for module in ["kvm_amd", "vhost_vsock"] {
            let status = Command::new("modprobe").arg(module).status()?;
            Finding::unless(status.success(), || format!("{module} does not load"))?;
        }
        let (machine, _) = inside.driver.machine()?;
        let mut machine = Microvm {
            executor: Executor::Kvm,
            kernel: &inside.kernel(version)?,
            initrd: PEER_INITRD_PATH.as_ref(),
            tsc_khz: machine.tsc_khz,
            append: "cryptomgr.notests do=guest",
            devices: &["-device", &format!("vhost-vsock-device,guest-cid={CID}")],
            core: Some(core),
        }
        .start()?;
        machine.wait_for(LISTENS)?;
        let socket = connect()?;
        socket.set_read_timeout(Some(PATIENCE))?;
        Ok(Self {
            socket,
            _machine: machine,
        })
    }

    /// Sends bytes there and back.
    ///
    /// # Errors
    /// When the guest is gone, or does not answer.
    pub fn echo(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.socket.write_all(bytes)?;
        self.socket.read_exact(bytes)
    }
}

fn connect() -> io::Result<VsockStream> {
    let began = Instant::now();
    loop {
        match VsockStream::connect_with_cid_port(CID, PORT) {
            Err(error) if began.elapsed() > CONNECT_PATIENCE => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
            connected => return connected,
        }
    }
}
