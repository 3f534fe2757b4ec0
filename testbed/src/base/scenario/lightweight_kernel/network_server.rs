//! A network server on a node of the lightweight kernel, which drives a network card of the node: programs there
//! have its sockets, and the base, at the other end of the cable, finds right bytes.

mod lease;
mod traffic;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::base::support::insula_command::{
    assert_equal, command, insula, insula_json, wait_for, with_cleanup,
};
use crate::base::support::resources::{Resources, assert_unchanged};
use crate::base::support::spare::{NetworkDriver, PAIR, shell};
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;
use crate::host::machine::SpareDevices;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "network_server",
    proves: "programs of a node have sockets of a server there: as Linux', with right bytes, without the base; and its end",
    machine: Shape {
        spare_devices: SpareDevices::Plain,
        ..Shape::USUAL
    },
    module: Module::Loaded,
    bases: &[Flavour::V6_12],
    limit: Duration::from_secs(600),
    soak_limit: Some(Duration::from_secs(2 * 3600)),
    play,
};

const NODE: &str = "quiet";
const SERVER: &str = "/payload/bin/insula-network";
/// Addresses of the server and of the base, and the network that they share.
const SERVED: &str = "10.9.0.2";
const BASE: &str = "10.9.0.1";
const BITS: &str = "/24";
/// Calls on sockets, and what is at their other end.
const CALLS: &str = include_str!("network_server/calls.py");
const CALLS_FILE: &str = "/tmp/calls.py";
/// Port of that end.
const PEER_PORT: u16 = 7000;
/// Requests of each kind in a measurement of redis, and connections at a time.
const REQUESTS: &str = "2000";
const CONNECTIONS: &str = "10";
/// What nginx serves.
const CONTENT_BYTES: usize = 300_000;
const NGINX: &str =
    "user root; worker_processes 2; pid /tmp/nginx.pid; error_log stderr; daemon off;
events {}
http {
    access_log off; sendfile on; client_body_temp_path /tmp/body; proxy_temp_path /tmp/proxy;
    fastcgi_temp_path /tmp/fastcgi; uwsgi_temp_path /tmp/uwsgi; scgi_temp_path /tmp/scgi;
    server { listen 80; root /tmp/www; }
}
";

fn play(context: &Context) -> Result<(), Finding> {
    with_cleanup(|| {
        let before = Resources::now()?;
        let driver = NetworkDriver::load()?;
        let interface = driver.interface_of(PAIR[1])?;
        shell(&format!(
            "ip address replace {BASE}{BITS} dev {interface} && ip link set {interface} up"
        ))?;
        fs::write(CALLS_FILE, CALLS)?;
        insula(&[
            "run", "--image", "lwk", "--cpus", "2", "--memory", "384M", "--device", PAIR[0],
            "--name", NODE,
        ])?;
        lease::play(&interface)?;
        start()?;
        calls_are_linux()?;
        let echo = Running::on_node(&["python3", CALLS_FILE, "peer", SERVED], PEER_PORT)?;
        traffic::echo(context, SERVED, PEER_PORT)?;
        echo.dies()?;
        redis()?;
        nginx()?;
        // Its interrupts follow it from core to core.
        for core in ["0", "1", "0"] {
            insula(&["servers", "move", NODE, "net", core])?;
            rests().map_err(|error| error.when(&format!("on core {core}")))?;
        }
        server_dies()?;
        insula(&["servers", "stop", NODE, "net"])?;
        insula(&["rm", "--force", NODE])?;
        shell(&format!("ip link set {interface} down"))?;
        driver.unload()?;
        assert_unchanged(&before)
    })
}

/// Starts the server.
fn start() -> Result<(), Finding> {
    let device = format!("virtio:{}", PAIR[0]);
    let address = format!("{SERVED}{BITS}");
    let server = [SERVER, "--device", &device, "--address", &address];
    let words = ["servers", "start", NODE, "net", "--cpus", "0", "--"];
    insula(&[&words[..], &server].concat()).map(drop)
}

/// Words that run a program on the node with the server's sockets.
fn there<'a>(program: &[&'a str]) -> Vec<&'a str> {
    [&["exec", "--net", "net", NODE, "--"][..], program].concat()
}

/// A program that serves, until it is dropped.
struct Running(Child);

impl Running {
    /// Starts a program on the node, and waits until it has a port.
    fn on_node(program: &[&str], port: u16) -> Result<Self, Finding> {
        Self::start(command(&there(program)), (SERVED, port))
    }

    fn start(mut program: Command, address: (&str, u16)) -> Result<Self, Finding> {
        let output = program.stdin(Stdio::null()).stdout(Stdio::null());
        let mut running = Self(output.spawn()?);
        wait_for(&format!("port {}", address.1), || {
            if let Some(status) = running.0.try_wait()? {
                return Err(Finding::new(format!("it has ended: {status}")));
            }
            Ok(TcpStream::connect(address).ok())
        })?;
        Ok(running)
    }

    /// Kills it: its connections end.
    fn dies(mut self) -> Result<(), Finding> {
        let mut connection = TcpStream::connect((SERVED, PEER_PORT))?;
        self.0.kill()?;
        traffic::ends(&mut connection)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The same calls have the same results on the base's sockets and on the server's.
fn calls_are_linux() -> Result<(), Finding> {
    let mut peer = Command::new("python3");
    peer.args([CALLS_FILE, "peer", BASE]);
    let _peer = Running::start(peer, (BASE, PEER_PORT))?;
    let on_base = shell(&format!("python3 {CALLS_FILE} {BASE} {BASE}"))?;
    let on_node = insula(&there(&["python3", CALLS_FILE, SERVED, BASE]))?;
    let both = on_node.lines().zip(on_base.lines());
    let different: Vec<_> = both.filter(|(node, base)| node != base).collect();
    assert_equal("calls on the node and on the base", &different, &vec![])?;
    assert_equal("the calls", &on_node.trim(), &on_base.trim())
}

/// Calls that the node's programs have had the base execute.
fn delegated() -> Result<u64, Finding> {
    let stats = insula_json(&["stats", NODE, "--json"])?;
    let cores = stats[0]["programs"]["cores"].as_array();
    let counts = cores
        .into_iter()
        .flatten()
        .flat_map(|core| ["delegated_calls", "requests"].map(|name| core[name].as_u64()));
    Ok(counts.map(Option::unwrap_or_default).sum())
}

/// Answers by redis, whose requests do not reach the base.
fn redis() -> Result<(), Finding> {
    let options = [
        "--protected-mode",
        "no",
        "--save",
        "",
        "--logfile",
        "/dev/null",
    ];
    let program = [&["redis-server", "--bind", SERVED][..], &options].concat();
    let server = Running::on_node(&program, 6379)?;
    let client = format!("redis-cli -h {SERVED}");
    assert_equal(
        "redis",
        &shell(&format!("{client} set key value"))?,
        &"OK".to_owned(),
    )?;
    assert_equal(
        "redis",
        &shell(&format!("{client} get key"))?,
        &"value".to_owned(),
    )?;
    let (began, before) = (Instant::now(), delegated()?);
    let served = requests_per_second(SERVED)?;
    let (calls, elapsed) = (delegated()? - before, began.elapsed());
    println!("redis by the network server: {served}; {calls} calls of the base in {elapsed:?}");
    // A look at the base's descriptors each 10 ms, and some calls for each connection.
    let most = elapsed.as_millis() as u64 / 10 + 400;
    Finding::unless(calls < most, || {
        format!("{calls} calls of the base in {elapsed:?}")
    })?;
    drop(server);
    let local = [&["redis-server", "--bind", BASE][..], &options].concat();
    let delegating = command(&[&["exec", NODE, "--"][..], &local].concat());
    let _server = Running::start(delegating, (BASE, 6379))?;
    let delegated = requests_per_second(BASE)?;
    println!("redis with delegated calls: {delegated}");
    Ok(())
}

fn requests_per_second(address: &str) -> Result<String, Finding> {
    let benchmark =
        format!("redis-benchmark -h {address} -t set,get -n {REQUESTS} -c {CONNECTIONS} --csv");
    let lines = shell(&benchmark)?;
    let rates = lines
        .lines()
        .skip(1)
        .map(|line| line.split(',').take(2).collect::<Vec<_>>().join(" "));
    Ok(rates.collect::<Vec<_>>().join(", ") + " requests a second")
}

/// nginx, a master and two workers that share its socket, serves a file.
fn nginx() -> Result<(), Finding> {
    fs::create_dir_all("/tmp/www")?;
    let content = traffic::bytes(CONTENT_BYTES, 5);
    fs::write("/tmp/www/content", &content)?;
    fs::write("/tmp/nginx.conf", NGINX)?;
    let server = Running::on_node(&["nginx", "-c", "/tmp/nginx.conf"], 80)?;
    let began = Instant::now();
    traffic::http(SERVED, "/content", &content, 40)?;
    println!("nginx: 40 files in {:.1} s", began.elapsed().as_secs_f64());
    insula(&[
        "exec",
        NODE,
        "--",
        "bash",
        "-c",
        "kill -QUIT $(cat /tmp/nginx.pid)",
    ])?;
    wait_for(
        "nginx to end",
        || Ok(TcpStream::connect((SERVED, 80)).err()),
    )?;
    drop(server);
    fs::remove_dir_all("/tmp/www").map_err(Finding::from)
}

/// A server without traffic rests until a frame interrupts: it is answered at once.
fn rests() -> Result<(), Finding> {
    const PINGS: u64 = 10;
    const PAUSE: Duration = Duration::from_millis(300);
    let state = || -> Result<[u64; 2], Finding> {
        let servers = insula_json(&["servers", "ls", NODE, "--json"])?;
        let numbers = ["interrupts", "busy_ns"].map(|name| servers[0]["endpoint"][name].as_u64());
        Ok(numbers.map(Option::unwrap_or_default))
    };
    let [before, busy_before] = state()?;
    let began = Instant::now();
    let mut times = Vec::new();
    for _ in 0..PINGS {
        std::thread::sleep(PAUSE);
        let said = shell(&format!("busybox ping -c 1 -w 60 {SERVED}"))?;
        let time = said
            .split("time=")
            .nth(1)
            .and_then(|rest| rest.lines().next());
        times.push(time.unwrap_or_default().to_owned());
    }
    let [after, busy] = state()?;
    let busy = Duration::from_nanos(busy - busy_before).as_secs_f64();
    let share = busy / began.elapsed().as_secs_f64();
    println!("a server that rests answers after {times:?}; busy for {share:.3} of the time");
    Finding::unless(after >= before + PINGS && share < 0.3, || {
        format!("{} interrupts, busy for {share}", after - before)
    })
}

/// A server that is killed takes its sockets with it; the next one has new ones.
fn server_dies() -> Result<(), Finding> {
    const WAITS: &str = "import socket, errno, select
listener = socket.create_server(('10.9.0.2', 7001))
print('ready', flush=True)
connection, _ = listener.accept()
print('accepted', flush=True)
for call in (lambda: connection.recv(1), lambda: connection.send(b'x'), listener.accept):
    try:
        print(call())
    except OSError as error:
        print(errno.errorcode[error.errno])
print(len(select.select([connection, listener], [], [], 0)[0]))
connection.close()
listener.close()
";
    let mut program = command(&there(&["python3", "-c", WAITS]))
        .stdout(Stdio::piped())
        .spawn()?;
    let output = program.stdout.take();
    let mut output = BufReader::new(output.ok_or_else(|| Finding::new("it has no output"))?);
    let mut said = String::new();
    output.read_line(&mut said)?;
    let connection = wait_for("port 7001", || Ok(TcpStream::connect((SERVED, 7001)).ok()))?;
    output.read_line(&mut said)?;
    let servers = insula_json(&["servers", "ls", NODE, "--json"])?;
    let pid = &servers[0]["endpoint"]["pid"];
    shell(&format!("kill -9 {pid}"))?;
    output.read_to_string(&mut said)?;
    program.wait()?;
    let wanted = "ready\naccepted\nECONNRESET\nECONNRESET\nENETDOWN\n2\n".to_owned();
    assert_equal("a program whose server is killed", &said, &wanted)?;
    drop(connection);
    let again = Running::on_node(&["python3", CALLS_FILE, "peer", SERVED], PEER_PORT)?;
    again.dies()
}
