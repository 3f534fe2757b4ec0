//! Other hosts, simulated by network namespaces: nodes reach them under the base's address, and none reaches
//! a node. The base does not become a router for them.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use nix::sched::{CloneFlags, setns};

use super::{ROOT, script};
use crate::base::Finding;
use crate::base::support::insula_command::{
    TIMEOUT, assert_equal, insula, insula_json, text, try_insula, wait_for,
};
use crate::base::support::supervisor_process;
use crate::base::support::virtio_modules::modprobe;

/// A host, its interface on the base and whether that forwards packets without nodes, the base's address there,
/// and the host's.
struct Host {
    name: &'static str,
    interface: &'static str,
    forwards: &'static str,
    base: &'static str,
    address: &'static str,
}

const WORLD: Host = Host {
    name: "world",
    interface: "to-world",
    forwards: "0",
    base: "192.0.2.1",
    address: "192.0.2.2",
};
const OTHER: Host = Host {
    name: "other",
    interface: "to-other",
    forwards: "1",
    base: "198.51.100.1",
    address: "198.51.100.2",
};
const GREETING: &str = "hello from outside";
/// Time within which a packet that is not dropped is answered, or refused.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// Name that a node asks for.
const ASKED: &str = "outside.example";
/// The base's name server.
const RESOLVER: (&str, &str) = ("/etc/resolv.conf", "nameserver 192.0.2.2\n");
/// What a supervisor leaves that is killed while it makes the nodes' bridge, or whose command times out.
const HALF_MADE: &str = "ip link add insula0 address 0a:49:0a:4e:00:01 type bridge";
/// What Docker does when it starts, as far as it concerns others.
const DOCKER: &str = "echo 1 > /proc/sys/net/ipv4/ip_forward && iptables -P FORWARD DROP && iptables -N DOCKER-USER && \
                      iptables -I FORWARD -j DOCKER-USER";
const DOCKER_RULES: &str = "iptables -S DOCKER-USER";
const DOCKER_REMOVED: &str = "nft delete table ip filter && echo 0 > /proc/sys/net/ipv4/ip_forward";
/// A firewall of others that drops what the base forwards.
const FIREWALL: &str = "nft 'table inet firewall { chain forward { type filter hook forward priority 0; policy drop; }; }'";
/// A node on another network.
const FREE: &str = "free";
/// The base's address in the nodes' network.
const BASE_ADDRESS: &str = "10.78.0.1";
/// A program of a server's that tells from where it is asked.
const TELLS_CLIENT: &str = "#!/bin/sh\n\
    printf 'Content-type: text/plain\\r\\n\\r\\n'\n\
    client=${REMOTE_ADDR##*:}\n\
    echo ${client%]}\n";
/// Modules of the base's kernel that all of that takes, in the order in which they can be unloaded.
const MODULES: [&str; 4] = ["veth", "xt_conntrack", "nft_compat", "x_tables"];

/// Makes the hosts, before nodes start. The first of these finds the nodes' bridge half made.
pub(super) fn make_hosts() -> Result<(), Finding> {
    for host in [&WORLD, &OTHER] {
        let Host {
            name,
            interface,
            base,
            address,
            ..
        } = host;
        run(&format!(
            "ip netns add {name} && ip link add {interface} type veth peer name eth0 netns {name} && \
             ip address add {base}/24 dev {interface} && ip link set {interface} up && \
             ip -n {name} address add {address}/24 dev eth0 && ip -n {name} link set lo up && \
             ip -n {name} link set eth0 up && ip -n {name} route add default via {base}"
        ))?;
    }
    set_forwarding()?;
    run(HALF_MADE)?;
    Ok(fs::write(RESOLVER.0, RESOLVER.1)?)
}

fn set_forwarding() -> Result<(), Finding> {
    for host in [&WORLD, &OTHER] {
        fs::write(host.forwarding(), host.forwards)?;
    }
    Ok(())
}

/// Removes them.
pub(super) fn remove_hosts() -> Result<(), Finding> {
    for Host {
        name, interface, ..
    } in [&WORLD, &OTHER]
    {
        run(&format!("ip link del {interface}; ip netns del {name}"))?;
    }
    fs::remove_file(RESOLVER.0)?;
    // A namespace ends some time after its last process.
    wait_for("the hosts' modules to be unused", || {
        Ok(modprobe(&[&["-r"], &MODULES[..]].concat()).ok())
    })
}

/// Addresses of nodes that lead elsewhere on the base.
const HIDDEN: &str = "10.78.40.0/24";

/// A network of the base's at addresses of nodes stays within reach.
pub(super) fn hides_no_other_network() -> Result<(), Finding> {
    run(&format!("ip route add {HIDDEN} dev {}", WORLD.interface))?;
    let refused = try_insula(&["run", "--image", "image-6.1", "--network"])?
        .refused(1, &[HIDDEN, WORLD.interface, "nothing was touched"]);
    run(&format!("ip route del {HIDDEN}"))?;
    refused.map(drop)
}

/// While no node has a network, the next one gets a network that hides no other.
pub(super) fn chooses_a_free_network() -> Result<(), Finding> {
    run(&format!("ip route add {HIDDEN} dev {}", WORLD.interface))?;
    let size = ["--cpus", "1", "--memory", "256M", "--network"];
    insula(&[&["run", "--image", "image-6.12", "--name", FREE], &size[..]].concat())?;
    let played = is_on_a_free_network();
    insula(&["rm", "--force", FREE])?;
    run(&format!("ip route del {HIDDEN}"))?;
    played
}

fn is_on_a_free_network() -> Result<(), Finding> {
    let address = text(&insula_json(&["inspect", FREE])?[0]["address"]);
    Finding::unless(address.starts_with("10.79."), || {
        format!("its address is {address}")
    })?;
    // Programs that `insula exec` starts may come before the card.
    wait_for("the base to answer", || {
        let (status, ..) = script(FREE, &[], "busybox ping -c 1 -w 20 10.79.0.1 >&2")?;
        Ok((status == 0).then_some(()))
    })?;
    finds(FREE, &format!("{FREE}.insula"), &address)?;
    is_reached_from(FREE)
}

/// A node reads from a server of another host, which sees the base.
pub(super) fn is_reached_from(node: &str) -> Result<(), Finding> {
    let listener = WORLD.inside(|| TcpListener::bind((WORLD.address, 80)))?;
    let serving = thread::spawn(move || serve(&listener));
    let get = format!("busybox wget -q -O - http://{}/", WORLD.address);
    let (status, output, _) = script(node, &[], &get)?;
    assert_equal("status", &(status, output.trim()), &(0, GREETING))?;
    let client = serving
        .join()
        .unwrap_or_else(|_| Err(ErrorKind::Other.into()))?;
    assert_equal("its client", &client.ip().to_string().as_str(), &WORLD.base)
}

fn serve(listener: &TcpListener) -> io::Result<SocketAddr> {
    let (mut stream, client) = listener.accept()?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut request = [0; 1024];
    let _ = stream.read(&mut request)?;
    write!(stream, "HTTP/1.0 200 OK\r\n\r\n{GREETING}\n")?;
    Ok(client)
}

/// A node resolves names of the base's name server, and those of nodes.
pub(super) fn resolves_names(node: &str, other: (&str, &str)) -> Result<(), Finding> {
    let socket = WORLD.inside(|| UdpSocket::bind((WORLD.address, 53)))?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    let serving = thread::spawn(move || answer_query(&socket));
    finds(node, ASKED, OTHER.address)?;
    let served = serving
        .join()
        .unwrap_or_else(|_| Err(ErrorKind::Other.into()));
    served?;
    let (name, address) = other;
    for name in [name.to_owned(), format!("{name}.insula")] {
        finds(node, &name, address)?;
    }
    Ok(())
}

/// A node finds that address by a name.
fn finds(node: &str, name: &str, address: &str) -> Result<(), Finding> {
    let lookup = format!("busybox nslookup -type=a {name}");
    let (status, output, errors) = script(node, &[], &lookup)?;
    Finding::unless(
        status == 0 && output.contains(&format!("Address: {address}")),
        || format!("`{lookup}`: status {status}, {output}{errors}"),
    )
}

/// Answers a query of an address (RFC 1035, 4.1).
fn answer_query(socket: &UdpSocket) -> io::Result<()> {
    let mut query = [0; 512];
    let (size, client) = socket.recv_from(&mut query)?;
    let address: Ipv4Addr = OTHER.address.parse().map_err(io::Error::other)?;
    // The query's id, an answer, one question and one record; it points at the question's name.
    let head = [query[0], query[1], 0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0];
    let record = [0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4];
    let answer = [
        &head[..],
        &query[head.len()..size],
        &record,
        &address.octets(),
    ]
    .concat();
    socket.send_to(&answer, client).map(drop)
}

/// From outside a node's server is not reached, nor one outside from another one outside, by way of the base.
pub(super) fn reaches_nothing(node_address: &str) -> Result<(), Finding> {
    for target in [
        format!("{node_address}:80"),
        format!("{}:80", OTHER.address),
    ] {
        let target = target.parse()?;
        let reached = WORLD.inside(|| TcpStream::connect_timeout(&target, ANSWER_TIMEOUT));
        match reached {
            Err(error) if error.kind() == ErrorKind::TimedOut => {}
            // One that nobody listens at would be refused.
            other => return Err(Finding::new(format!("{target} from outside: {other:?}"))),
        }
    }
    Ok(())
}

/// Makes that program, in the root of the nodes that serve.
pub(super) fn make_client_program() -> Result<(), Finding> {
    let program = Path::new(ROOT).join("cgi-bin/client");
    fs::create_dir_all(Path::new(ROOT).join("cgi-bin"))?;
    fs::write(&program, TELLS_CLIENT)?;
    Ok(fs::set_permissions(
        program,
        fs::Permissions::from_mode(0o755),
    )?)
}

/// A server sees the addresses of another host's clients at a published port, also of those whose connection is there when its
/// supervisor is killed.
pub(super) fn keeps_clients_addresses(node: &str, port: u16) -> Result<(), Finding> {
    sees_client(port, WORLD.address)?;
    let mut begun = WORLD.inside(|| begin_request(port))?;
    supervisor_process::kill(node)?;
    // That starts another.
    insula(&["exec", node, "--", "busybox", "true"])?;
    let seen = end_request(&mut begun)?;
    assert_equal("the client that it sees", &seen.as_str(), &WORLD.address)?;
    sees_client(port, WORLD.address)
}

/// What others filter is not forwarded around them: the base's clients are its own then.
pub(super) fn is_relayed_beside_a_firewall(node: &str, port: u16) -> Result<(), Finding> {
    sees_client(port, WORLD.address)?;
    run(FIREWALL)?;
    insula(&["restart", node])?;
    let seen = sees_client(port, BASE_ADDRESS);
    run("nft delete table inet firewall")?;
    seen?;
    insula(&["restart", node])?;
    sees_client(port, WORLD.address)
}

/// The server at a published port comes to see that address of a client in another host.
fn sees_client(port: u16, address: &str) -> Result<(), Finding> {
    wait_for(&format!("the server to see {address}"), || {
        // It may just start.
        let seen = WORLD.inside(|| end_request(&mut begin_request(port)?));
        Ok(seen.is_ok_and(|seen| seen == address).then_some(()))
    })
}

fn begin_request(port: u16) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect((WORLD.base, port))?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(b"GET /cgi-bin/client HTTP/1.0\r\n")?;
    Ok(stream)
}

/// The last line of the answer.
fn end_request(stream: &mut TcpStream) -> io::Result<String> {
    stream.write_all(b"\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer.lines().last().unwrap_or_default().to_owned())
}

/// Once there is no network of nodes, the base forwards nothing for them.
pub(super) fn has_no_tables() -> Result<(), Finding> {
    wait_for("the tables to be removed", || {
        Ok((!run("nft list tables")?.contains("insula")).then_some(()))
    })
}

/// The base is as it was then.
pub(super) fn is_closed() -> Result<(), Finding> {
    has_no_tables()?;
    for host in [&WORLD, &OTHER] {
        let forwards = fs::read_to_string(host.forwarding())?;
        assert_equal(host.interface, &forwards.trim(), &host.forwards)?;
    }
    Ok(())
}

/// Has the base drop what it forwards, as Docker has it, while `play` is played.
pub(super) fn beside_docker(play: impl FnOnce() -> Result<(), Finding>) -> Result<(), Finding> {
    run(DOCKER)?;
    let before = run(DOCKER_RULES)?;
    play()?;
    wait_for("Docker's chain to be as it was", || {
        Ok((run(DOCKER_RULES)? == before).then_some(()))
    })?;
    run(DOCKER_REMOVED)?;
    // The base's setting has changed those of all interfaces.
    set_forwarding()
}

impl Host {
    /// The setting of its interface.
    fn forwarding(&self) -> String {
        format!("/proc/sys/net/ipv4/conf/{}/forwarding", self.interface)
    }

    /// What is opened in the host stays there.
    fn inside<T: Send>(&self, open: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        let namespace = File::open(format!("/run/netns/{}", self.name))?;
        let opened = thread::scope(|scope| {
            let thread = scope.spawn(|| {
                setns(namespace, CloneFlags::CLONE_NEWNET)?;
                open()
            });
            thread.join()
        });
        opened.unwrap_or_else(|_| Err(ErrorKind::Other.into()))
    }
}

/// Runs a script on the base, which must succeed.
fn run(script: &str) -> Result<String, Finding> {
    let output = Command::new("sh").args(["-c", script]).output()?;
    Finding::unless(output.status.success(), || {
        format!("`{script}`: {output:?}")
    })?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
