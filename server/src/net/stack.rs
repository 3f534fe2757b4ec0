//! The network stack of a card: `smoltcp`, its sockets, and its own address.

use std::fmt;
use std::time::Duration;

use smoltcp::iface::{Config, Interface, PollResult, SocketHandle, SocketSet};
use smoltcp::socket::{dhcpv4, tcp};
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, IpAddress, IpCidr, Ipv4Address, Ipv4Cidr};

use super::listener::Attempt;
use super::nic::Nic;
use super::wire::Wire;

/// Most frames that are taken before requests are looked at again.
const FRAMES: usize = 64;
/// Connections of released sockets that are kept for late segments of the peer (`TIME_WAIT`).
const TIME_WAIT_MAX: usize = 64;
/// How long the end of a peer whose program has gone is waited for (`tcp_fin_timeout`).
const END_TIMEOUT_MS: i64 = 60_000;

/// How a card gets its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addressing {
    /// It is given: the address with its prefix, and the router to other networks.
    Static(Ipv4Cidr, Option<Ipv4Address>),
    /// A server of the network gives it (DHCP).
    Dhcp,
}

/// A stack.
pub(super) struct Stack<N> {
    wire: Wire<N>,
    interface: Interface,
    pub(super) sockets: SocketSet<'static>,
    dhcp: Option<SocketHandle>,
    /// Connections whose sockets were released, and when they are given up.
    leaving: Vec<(SocketHandle, Instant)>,
    now: Instant,
}

impl<N: fmt::Debug> fmt::Debug for Stack<N> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Stack")
            .field("nic", &self.wire.nic)
            .field("leaving", &self.leaving)
            .finish_non_exhaustive()
    }
}

impl<N: Nic> Stack<N> {
    /// Creates the stack of a card. `seed` makes its numbers hard to guess.
    pub(super) fn new(nic: N, addressing: Addressing, seed: u64) -> Self {
        let mut wire = Wire::new(nic);
        let mut config = Config::new(EthernetAddress(wire.nic.address()).into());
        config.random_seed = seed;
        let interface = Interface::new(config, &mut wire, Instant::ZERO);
        let mut stack = Self {
            wire,
            interface,
            sockets: SocketSet::new(Vec::new()),
            dhcp: None,
            leaving: Vec::new(),
            now: Instant::ZERO,
        };
        match addressing {
            Addressing::Static(own, router) => stack.set_address(Some(own), router),
            Addressing::Dhcp => stack.dhcp = Some(stack.sockets.add(dhcpv4::Socket::new())),
        }
        stack
    }

    fn set_address(&mut self, own: Option<Ipv4Cidr>, router: Option<Ipv4Address>) {
        self.interface.update_ip_addrs(|addresses| {
            addresses.clear();
            // There is room for more than one.
            addresses.extend(own.map(IpCidr::Ipv4));
        });
        self.interface.routes_mut().remove_default_ipv4_route();
        if let Some(router) = router {
            // There is room for more than one.
            let _ = self.interface.routes_mut().add_default_ipv4_route(router);
        }
    }

    /// Returns the own address, if there is one.
    pub(super) fn address(&self) -> Option<Ipv4Cidr> {
        let mut addresses = self.interface.ip_addrs().iter();
        addresses.next().map(|IpCidr::Ipv4(own)| *own)
    }

    /// Whether an address can be reached: on the network of the card, or by its router. Not its own:
    /// nothing comes back from the card.
    pub(super) fn reaches(&self, address: IpAddress) -> bool {
        let IpAddress::Ipv4(address) = address;
        let own = self.address();
        let is_own = own.is_some_and(|own| own.address() == address);
        let is_near = own.is_some_and(|own| own.contains_addr(&address));
        let has_router = self.interface.routes().get_default_ipv4_route().is_some();
        let is_special = address.is_loopback() || address.is_unspecified();
        !is_own && !is_special && (is_near || address.is_broadcast() || own.is_some() && has_router)
    }

    /// Looks whether the card works.
    pub(super) fn check(&self) -> Result<(), N::Error> {
        self.wire.nic.check()
    }

    /// Returns the card.
    pub(super) fn nic(&mut self) -> &mut N {
        &mut self.wire.nic
    }

    /// Returns when something is due, from the last poll on; `None` if nothing is until a frame arrives.
    pub(super) fn due_after(&mut self) -> Option<Duration> {
        let delay = self.interface.poll_delay(self.now, &self.sockets)?;
        Some(Duration::from_micros(delay.total_micros()))
    }

    /// Takes what has arrived, and sends what is due. `admits` says whether the first segment of a
    /// connection is taken. Returns whether anything was to be done.
    pub(super) fn poll(
        &mut self,
        now_ms: i64,
        mut admits: impl FnMut(&mut SocketSet<'static>, Attempt) -> bool,
    ) -> Result<bool, N::Error> {
        self.now = Instant::from_millis(now_ms);
        let mut is_busy = false;
        for _ in 0..FRAMES {
            let Some(frame) = self.wire.receive()? else {
                break;
            };
            is_busy = true;
            let attempt = Attempt::of(frame);
            let is_taken = attempt.is_none_or(|attempt| admits(&mut self.sockets, attempt));
            if is_taken {
                let (interface, wire) = (&mut self.interface, &mut self.wire);
                interface.poll_ingress_single(self.now, wire, &mut self.sockets);
            }
        }
        self.follow_dhcp();
        is_busy |= self.send();
        self.forget_ended();
        self.wire.nic.flush()?;
        Ok(is_busy)
    }

    /// Sends what is due. Returns whether anything was.
    fn send(&mut self) -> bool {
        let (interface, wire) = (&mut self.interface, &mut self.wire);
        // Each socket sends one segment each time.
        let mut sent = 0;
        while sent < FRAMES
            && interface.poll_egress(self.now, wire, &mut self.sockets)
                == PollResult::SocketStateChanged
        {
            sent += 1;
        }
        sent > 0
    }

    /// Takes over what DHCP has found.
    fn follow_dhcp(&mut self) {
        let Some(handle) = self.dhcp else { return };
        let event = self.sockets.get_mut::<dhcpv4::Socket<'_>>(handle).poll();
        match event {
            Some(dhcpv4::Event::Configured(found)) => {
                let (own, router) = (found.address, found.router);
                self.set_address(Some(own), router);
            }
            Some(dhcpv4::Event::Deconfigured) => self.set_address(None, None),
            None => {}
        }
    }

    /// Has a connection end by itself whose socket is released.
    pub(super) fn leave(&mut self, handle: SocketHandle) {
        let deadline = self.now + smoltcp::time::Duration::from_millis(END_TIMEOUT_MS as u64);
        self.leaving.push((handle, deadline));
    }

    /// Connects a socket of the stack.
    pub(super) fn connect(
        &mut self,
        socket: &mut tcp::Socket<'static>,
        to: smoltcp::wire::IpEndpoint,
        from: smoltcp::wire::IpListenEndpoint,
    ) -> Result<(), tcp::ConnectError> {
        socket.connect(self.interface.context(), to, from)
    }

    /// Removes connections that are over.
    fn forget_ended(&mut self) {
        let (sockets, now) = (&mut self.sockets, self.now);
        let mut waiting = 0;
        // The newest ones are kept.
        let mut kept = Vec::new();
        for (handle, deadline) in self.leaving.drain(..).rev() {
            let socket = sockets.get_mut::<tcp::Socket<'_>>(handle);
            let is_over = match socket.state() {
                // With a peer it still has a reset to send.
                tcp::State::Closed => socket.remote_endpoint().is_none(),
                tcp::State::TimeWait => {
                    waiting += 1;
                    waiting > TIME_WAIT_MAX
                }
                _ => {
                    if now > deadline {
                        socket.abort();
                    }
                    false
                }
            };
            match is_over {
                true => drop(sockets.remove(handle)),
                false => kept.push((handle, deadline)),
            }
        }
        kept.reverse();
        self.leaving = kept;
    }
}
