//! A virtual machine beside the nodes, which communicates with the base by sockets.

use std::io::{self, Read, Write};
use std::process::Command;
use std::time::{Duration, Instant};

use testbed::base::Finding;
use testbed::host::payload::equipment::PEER_INITRD_PATH;
use testbed::node::socket_peer::{LISTENS, PORT};
use vsock::VsockStream;

use super::Inside;
use crate::microvm::{Executor, Microvm, Running};

/// Its address (CID). 2 is the base's, smaller ones are reserved.
const CID: u32 = 3;
/// Time limit for an answer.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit to connect: the listener reports slightly before connections are accepted.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A KVM guest with one core, whose program serves a socket (AF_VSOCK) by way of vhost: the usual
/// way to communicate with a second kernel.
pub struct Guest {
    socket: VsockStream,
    _machine: Running,
}

impl Guest {
    /// Starts a guest with a kernel of that version, its processor on that core, which should be
    /// otherwise idle.
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
            cores: 1,
            devices: &["-device", &format!("vhost-vsock-device,guest-cid={CID}")],
            core: Some(core),
        }
        .start()?;
        machine.wait_for(LISTENS)?;
        let socket = connect()?;
        socket.set_read_timeout(Some(TIMEOUT))?;
        Ok(Self {
            socket,
            _machine: machine,
        })
    }

    /// Sends bytes there and back.
    ///
    /// # Errors
    /// When the guest has ended, or does not answer.
    pub fn echo(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.socket.write_all(bytes)?;
        self.socket.read_exact(bytes)
    }
}

fn connect() -> io::Result<VsockStream> {
    let began = Instant::now();
    loop {
        match VsockStream::connect_with_cid_port(CID, PORT) {
            Err(error) if began.elapsed() > CONNECT_TIMEOUT => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
            connected => return connected,
        }
    }
}
