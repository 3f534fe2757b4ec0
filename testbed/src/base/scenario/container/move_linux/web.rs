//! nginx moves, a master with two workers, while ten clients that stay connected and others that
//! come and go read from it. No request fails.

use std::fs;
use std::io::{BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::streams::GOES_ON_TIMEOUT;
use crate::base::Finding;
use crate::base::support::insula_command::{
    assert_equal, insula, insula_json, text, wait_at_most, wait_for,
};

/// Folder that base and nodes have, with what nginx serves.
const FOLDER: &str = "/var/tmp/move_linux";
const CONFIGURATION: &str = "user root; worker_processes 2; pid /run/nginx.pid; error_log stderr;
events {}
http {
    access_log off; client_body_temp_path /tmp/body; proxy_temp_path /tmp/proxy;
    fastcgi_temp_path /tmp/fastcgi; uwsgi_temp_path /tmp/uwsgi; scgi_temp_path /tmp/scgi;
    keepalive_timeout 1h; keepalive_requests 1000000;
    server { listen 80; root /var/tmp/move_linux; }
}
";
pub(in super::super) const NAME: &str = "web";
/// Clients that stay connected.
const CLIENTS: usize = 10;
/// Bytes that each reads at once.
const BYTES: usize = 20_000;
/// Pause after each two requests, so that an emulator has time for what is tried meanwhile.
const PAUSE: Duration = Duration::from_millis(60);
/// Requests after which clients are said to be served.
const SERVED: u64 = 2 * CLIENTS as u64;

/// Makes what base and nodes share, before the nodes start.
pub(in super::super) fn prepare() -> Result<(), Finding> {
    fs::create_dir_all(FOLDER)?;
    let content: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..))
        .take(BYTES)
        .collect();
    fs::write(format!("{FOLDER}/content"), content)?;
    Ok(fs::write(format!("{FOLDER}/nginx.conf"), CONFIGURATION)?)
}

/// Removes it.
pub(in super::super) fn clean_up() -> Result<(), Finding> {
    Ok(fs::remove_dir_all(FOLDER)?)
}

pub(super) fn play() -> Result<(), Finding> {
    let load = start("6.1")?;
    for node in ["6.12", "6.1"] {
        let moved = insula(&["move", NAME, node])?;
        println!("{}", moved.trim_end());
        load.goes_on()
            .map_err(|error| error.when(&format!("nginx on {node}")))?;
    }
    end(load)
}

/// Starts nginx as a container on a node, and clients that connect to the container's address.
fn start(node: &str) -> Result<Load, Finding> {
    let address = serve(node, None)?;
    clients(format!("{address}:80"))
}

/// Starts nginx as a container on a node, and publishes its port as that of the base. Returns its address.
pub(in super::super) fn serve(node: &str, published: Option<u16>) -> Result<String, Finding> {
    let configuration = format!("{FOLDER}/nginx.conf");
    let program = ["nginx", "-c", &configuration, "-g", "daemon off;"];
    let exec = ["exec", "--container", NAME, "-d", node];
    let ports = published.map(|port| format!("--publish=127.0.0.1:{port}:80"));
    let ports: Vec<_> = ports.iter().map(String::as_str).collect();
    insula(&[&exec[..], &ports, &["--"], &program].concat())?;
    let address = text(&insula_json(&["inspect", NAME])?[0]["address"]);
    wait_for("nginx to serve", || {
        Ok(TcpStream::connect((address.as_str(), 80)).ok())
    })?;
    Ok(address)
}

/// Starts clients of the nginx at an address.
pub(in super::super) fn clients(address: String) -> Result<Load, Finding> {
    let load = Load::start(address)?;
    load.goes_on()?;
    Ok(load)
}

/// Ends clients and nginx, which must have failed in nothing.
pub(in super::super) fn end(load: Load) -> Result<(), Finding> {
    let (requests, longest_ms) = load.end()?;
    println!("nginx: {requests} requests, the longest {longest_ms} ms");
    insula(&["stop", NAME])?;
    let status = &insula_json(&["inspect", NAME])?[0]["exit_code"];
    assert_equal("nginx's status", status, &0.into())?;
    insula(&["rm", NAME]).map(drop)
}

/// Clients that read until they are ended.
pub(in super::super) struct Load {
    served: Arc<AtomicU64>,
    ending: Arc<AtomicBool>,
    thread: JoinHandle<Result<u64, String>>,
}

impl Load {
    fn start(address: String) -> Result<Self, Finding> {
        let content = fs::read(format!("{FOLDER}/content"))?;
        let (served, ending) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (counted, ended) = (Arc::clone(&served), Arc::clone(&ending));
        let thread = thread::spawn(move || {
            let mut staying = Vec::new();
            for _ in 0..CLIENTS {
                staying.push(connect(&address)?);
            }
            let mut longest_ms = 0;
            for number in (0..CLIENTS).cycle() {
                if ended.load(Ordering::Relaxed) {
                    break;
                }
                let began = Instant::now();
                read(&mut staying[number], &content)?;
                read(&mut connect(&address)?, &content)?;
                longest_ms = longest_ms.max(began.elapsed().as_millis() as u64);
                counted.fetch_add(2, Ordering::Relaxed);
                thread::sleep(PAUSE);
            }
            Ok(longest_ms)
        });
        Ok(Self {
            served,
            ending,
            thread,
        })
    }

    /// Waits until all have been served anew.
    pub(in super::super) fn goes_on(&self) -> Result<(), Finding> {
        let before = self.served.load(Ordering::Relaxed);
        wait_at_most(GOES_ON_TIMEOUT, "nginx to serve all clients", || {
            Finding::unless(!self.thread.is_finished(), || "a request has failed".into())?;
            Ok((self.served.load(Ordering::Relaxed) >= before + SERVED).then_some(()))
        })
    }

    /// Ends the clients: how many requests they made, and how long two in a row took at most.
    fn end(self) -> Result<(u64, u64), Finding> {
        self.ending.store(true, Ordering::Relaxed);
        let ended = self
            .thread
            .join()
            .unwrap_or_else(|_| Err("it panicked".into()));
        let longest_ms = ended.map_err(|error| Finding::new(format!("a request: {error}")))?;
        Ok((self.served.load(Ordering::Relaxed), longest_ms))
    }
}

fn connect(address: &str) -> Result<TcpStream, String> {
    let open = || {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(GOES_ON_TIMEOUT))?;
        Ok(stream)
    };
    open().map_err(|error: std::io::Error| format!("connecting: {error}"))
}

/// Reads the content once.
fn read(stream: &mut TcpStream, content: &[u8]) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("reading: {error}");
    let request = b"GET /content HTTP/1.1\r\nHost: web\r\n\r\n";
    stream.write_all(request).map_err(failed)?;
    // The answer to one request is all that there is to read.
    let mut stream = BufReader::new(stream);
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).map_err(failed)?;
        head.extend(byte);
    }
    if !head.starts_with(b"HTTP/1.1 200 ") {
        return Err(format!("answer {}", String::from_utf8_lossy(&head)));
    }
    let mut body = vec![0; content.len()];
    stream.read_exact(&mut body).map_err(failed)?;
    match body == content {
        true => Ok(()),
        false => Err("other bytes than the file has".into()),
    }
}
