//! Asking the name servers of the base.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use super::message::responds;

/// Time that each server has. Who asks repeats its query after five seconds.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Most servers that are asked (`MAXNS` of resolv.conf(5)).
const SERVERS_MAX: usize = 3;
/// Most bytes of a message.
const MESSAGE_MAX: usize = 65535;

/// How a message is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    /// A message a packet, without a promise.
    Datagram,
    /// Each message after its length, as for responses that are too large for a packet.
    Stream,
}

/// The first response of a server to a query.
pub(super) fn ask(query: &[u8], servers: &[SocketAddr], transport: Transport) -> Option<Vec<u8>> {
    let asked = servers.iter().take(SERVERS_MAX);
    let mut responses = asked.map(|&server| match transport {
        Transport::Datagram => by_datagram(query, server),
        Transport::Stream => by_stream(query, server),
    });
    responses.find_map(Result::ok)
}

fn by_datagram(query: &[u8], server: SocketAddr) -> io::Result<Vec<u8>> {
    let any = match server.ip() {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let socket = UdpSocket::bind((any, 0))?;
    // From then on packets of others are not received.
    socket.connect(server)?;
    socket.send(query)?;
    let mut response = vec![0; MESSAGE_MAX];
    let began = Instant::now();
    loop {
        let left = TIMEOUT.saturating_sub(began.elapsed());
        socket.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        let size = socket.recv(&mut response)?;
        if responds(&response[..size], query) {
            response.truncate(size);
            return Ok(response);
        }
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
}

fn by_stream(query: &[u8], server: SocketAddr) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect_timeout(&server, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    write(&mut stream, query)?;
    let response = read(&mut stream)?;
    match responds(&response, query) {
        true => Ok(response),
        false => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Reads a message of a stream.
pub(super) fn read(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut length = [0; 2];
    stream.read_exact(&mut length)?;
    let mut message = vec![0; u16::from_be_bytes(length).into()];
    stream.read_exact(&mut message)?;
    Ok(message)
}

/// Writes a message to a stream.
pub(super) fn write(stream: &mut TcpStream, message: &[u8]) -> io::Result<()> {
    let length = u16::try_from(message.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes()[..], message].concat())
}
