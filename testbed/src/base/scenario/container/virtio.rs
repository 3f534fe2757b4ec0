//! Virtio devices of nodes, with the stock drivers of their kernels.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::thread;
use std::time::Duration;

use insula_node::attachment;
use vsock::VsockStream;

use crate::base::support::insula_command::{TIMEOUT, assert_equal, insula, wait_for, with_cleanup};
use crate::base::support::nodes::test_node::{TestNode, peer_image};
use crate::base::support::supervisor_process;
use crate::base::support::virtio_modules::{SOCKET_MODULES, load_sockets, unload};
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;
use crate::node::socket_peer::{LISTENS, PORT};

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "virtio",
    proves: "stock drivers in a node have the base's virtio devices, which survive their back end",
    machine: Shape::USUAL,
    module: Module::Loaded,
    bases: &[Flavour::V6_12],
    limit: Duration::from_secs(600),
    soak_limit: None,
    play,
};

/// Simultaneous connections, and bytes through each, both ways.
const CONNECTIONS: usize = 4;
const BYTES: usize = 4 << 20;

fn play(context: &Context) -> Result<(), Finding> {
    load_sockets()?;
    let played = with_cleanup(|| {
        for version in ["6.1", "6.12"] {
            let in_context = |error: Finding| error.when(&format!("with a node of {version}"));
            with_node(context, version).map_err(in_context)?;
        }
        Ok(())
    });
    played?;
    unload(&SOCKET_MODULES)
}

fn with_node(context: &Context, version: &str) -> Result<(), Finding> {
    let image = peer_image(context, version)?;
    let source = ["--image", &image];
    let name = format!("virtio-{version}");
    let node = TestNode::start(&name, &source, &["--memory", "256M"], "virtio")?;
    node.wait_for_line(LISTENS)?;
    several_connections(&node)?;
    supervisor_process::kill(&name)?;
    node.assert_runs()?;
    insula(&["supervise", &name])?;
    several_connections(&node).map_err(|error| error.when("its back end was killed"))?;
    insula(&["restart", &name])?;
    node.wait_for_line(LISTENS)?;
    several_connections(&node).map_err(|error| error.when("it was restarted"))?;
    insula(&["rm", "--force", &name]).map(drop)
}

/// Connects, as soon as the node's driver has its device.
fn connect(cid: u32) -> Result<VsockStream, Finding> {
    let stream = wait_for("a connection to the node", || {
        Ok(VsockStream::connect_with_cid_port(cid, PORT).ok())
    })?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    Ok(stream)
}

/// Several connections at once; each echoes what was sent.
fn several_connections(node: &TestNode) -> Result<(), Finding> {
    let id = node.inspect()?["id"]
        .as_u64()
        .and_then(|id| u32::try_from(id).ok());
    let cid = attachment::cid(id.ok_or_else(|| Finding::new("the node has no id"))?);
    let streams = (0..CONNECTIONS).map(|_| connect(cid));
    let streams = streams.collect::<Result<Vec<_>, _>>()?;
    thread::scope(|scope| {
        let echoes: Vec<_> = streams
            .into_iter()
            .map(|stream| scope.spawn(move || echo(stream)))
            .collect();
        echoes.into_iter().try_for_each(|echo| {
            let result = echo.join();
            result.unwrap_or_else(|_| Err(Finding::new("a thread panicked")))
        })
    })
}

fn echo(stream: VsockStream) -> Result<(), Finding> {
    let mut random = fastrand::Rng::new();
    let sent: Vec<u8> = std::iter::repeat_with(|| random.u8(..))
        .take(BYTES)
        .collect();
    let mut received = Vec::with_capacity(BYTES);
    let mut receiving = stream.try_clone()?;
    thread::scope(|scope| {
        let sending = scope.spawn(|| -> std::io::Result<()> {
            let mut stream = &stream;
            stream.write_all(&sent)?;
            stream.shutdown(Shutdown::Write)
        });
        receiving.read_to_end(&mut received)?;
        let ended = sending.join();
        ended.unwrap_or_else(|_| Err(std::io::Error::other("the sending thread panicked")))
    })?;
    assert_equal("bytes that came back", &received.len(), &sent.len())?;
    Finding::unless(received == sent, || "other bytes came back".into())
}
