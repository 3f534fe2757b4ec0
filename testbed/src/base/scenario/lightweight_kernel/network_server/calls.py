"""Calls on sockets, whose results are printed: the same on the sockets of Linux and of a network server.

calls.py peer ADDRESS      the other end, on the base
calls.py OWN PEER          the calls, from a program at OWN
"""
import errno
import os
import select
import signal
import socket
import struct
import sys
import threading
import time

PORT = 7000
SECOND = 1_000_000


def peer(address):
    """Does to each connection what its first byte says."""
    listener = socket.create_server((address, PORT))
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind((address, PORT))
    threading.Thread(target=echo_datagrams, args=(datagrams,), daemon=True).start()
    print("ready", flush=True)
    while True:
        connection, (host, _) = listener.accept()
        threading.Thread(target=serve, args=(connection, host), daemon=True).start()


def echo_datagrams(datagrams):
    while True:
        data, sender = datagrams.recvfrom(2000)
        datagrams.sendto(data, sender)


def serve(connection, host):
    command = connection.recv(1)
    if command == b"e":
        while data := connection.recv(65536):
            connection.sendall(data)
    elif command == b"h":
        connection.sendall(b"half")
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(65536):
            pass
    elif command == b"r":
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    elif command == b"s":
        time.sleep(0.3)
        connection.sendall(b"slow")
    elif command == b"c":
        (port,) = struct.unpack("!H", connection.recv(2))
        with socket.create_connection((host, port)) as caller:
            caller.sendall(b"called")
            connection.sendall(caller.recv(100))
    connection.close()


def show(what, call, *arguments):
    """Prints the result of a call, or its error."""
    try:
        print(what, call(*arguments), flush=True)
    except OSError as error:
        print(what, errno.errorcode.get(error.errno, error), flush=True)


def ready(sock, wait=1000):
    """What poll, epoll and select say of a socket, once something of it is there."""
    poll = select.poll()
    poll.register(sock, select.POLLIN | select.POLLOUT | select.POLLRDHUP)
    epoll = select.epoll()
    epoll.register(sock, select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP)
    found = [events for _, events in poll.poll(wait)]
    found += [events for _, events in epoll.poll(0)]
    sets = select.select([sock], [sock], [], 0)
    epoll.close()
    return [hex(events) for events in found], [len(one) for one in sets]


def until(sock, wanted):
    poll = select.poll()
    poll.register(sock, wanted)
    return bool(poll.poll(5000))


def connected(address, command=b"e"):
    sock = socket.create_connection((address, PORT), timeout=20)
    sock.settimeout(None)
    sock.sendall(command)
    return sock


def streams(own, address):
    sock = socket.socket()
    show("new", ready, sock, 0)
    show("not connected", sock.recv, 1)
    show("no peer", sock.getpeername)
    show("own", sock.getsockname)
    show("type", sock.getsockopt, socket.SOL_SOCKET, socket.SO_TYPE)
    show("accepts", sock.accept)
    show("shutdown", sock.shutdown, socket.SHUT_RDWR)
    sock.close()
    sock = connected(address)
    print("peer", sock.getpeername()[1], sock.getsockname()[0] == own)
    show("idle", ready, sock)
    show("again", sock.connect, (address, PORT))
    sock.sendall(b"0123456789")
    until(sock, select.POLLIN)
    show("arrived", ready, sock)
    show("peek", sock.recv, 4, socket.MSG_PEEK)
    show("part", sock.recv, 3)
    show("all", sock.recv, 7, socket.MSG_WAITALL)
    show("nothing", sock.recv, 10, socket.MSG_DONTWAIT)
    sock.settimeout(0.1)
    sock.setblocking(True)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("qq", 0, SECOND // 10))
    show("in time", sock.recv, 10)
    show("timeout", sock.getsockopt, socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("qq", 0, 0))
    show("sendmsg", sock.sendmsg, [b"ab", b"", b"cde"])
    show("recvmsg", lambda: sock.recvmsg(5, 100, socket.MSG_WAITALL)[:3])
    sock.setblocking(False)
    total = 0
    try:
        while True:
            total += sock.send(bytes(100_000), socket.MSG_DONTWAIT)
    except BlockingIOError:
        pass
    print("full", total > 10_000)
    sock.setblocking(True)
    count = 0
    while count < total:
        count += len(sock.recv(65536))
    print("drained", count == total)
    sock.shutdown(socket.SHUT_WR)
    until(sock, select.POLLRDHUP)
    show("end", sock.recv, 10)
    show("both", ready, sock)
    show("broken", sock.send, b"x", socket.MSG_NOSIGNAL)
    sock.close()


def ends(address):
    sock = connected(address, b"h")
    until(sock, select.POLLRDHUP)
    show("half", ready, sock)
    show("rest", sock.recv, 100)
    show("end", sock.recv, 100)
    show("still", sock.send, b"more")
    sock.close()
    sock = connected(address, b"r")
    until(sock, select.POLLHUP)
    show("reset", ready, sock)
    show("error", sock.getsockopt, socket.SOL_SOCKET, socket.SO_ERROR)
    show("read", sock.recv, 10)
    show("write", sock.send, b"x", socket.MSG_NOSIGNAL)
    sock.close()
    sock = socket.socket()
    sock.setblocking(False)
    show("begun", sock.connect, (address, 1))
    until(sock, select.POLLOUT)
    show("refused", ready, sock)
    show("error", sock.getsockopt, socket.SOL_SOCKET, socket.SO_ERROR)
    show("again", sock.getsockopt, socket.SOL_SOCKET, socket.SO_ERROR)
    sock.close()
    sock = socket.socket()
    show("blocking", sock.connect, (address, 1))
    sock.close()


def signals(address):
    signal.signal(signal.SIGPIPE, lambda *_: print("SIGPIPE", flush=True))
    sock = connected(address)
    sock.shutdown(socket.SHUT_WR)
    show("pipe", os.write, sock.fileno(), b"x")
    sock.close()
    seen = []
    signal.signal(signal.SIGALRM, lambda *_: seen.append(1))
    sock = connected(address, b"s")
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    # Python itself calls again after a signal.
    show("interrupted", sock.recv, 100)
    print("seen", len(seen))
    poll = select.poll()
    poll.register(sock, select.POLLPRI)
    sock.close()


def listening(own, address):
    listener = socket.socket()
    listener.bind((own, 0))
    port = listener.getsockname()[1]
    second = socket.socket()
    show("taken", second.bind, (own, port))
    show("elsewhere", second.bind, ("192.0.2.1", 0))
    second.close()
    listener.listen(4)
    show("listening", ready, listener, 0)
    listener.setblocking(False)
    show("nobody", listener.accept)
    listener.setblocking(True)
    control = connected(address, b"c")
    control.sendall(struct.pack("!H", port))
    until(listener, select.POLLIN)
    show("somebody", ready, listener)
    accepted, (host, _) = listener.accept()
    print("from", host == address, accepted.getsockname()[1] == port)
    copy = accepted.dup()
    accepted.close()
    # A child has it, too, and ends before its parent.
    child = os.fork()
    if child == 0:
        data = copy.recv(3, socket.MSG_WAITALL)
        os._exit(0 if data == b"cal" else 1)
    show("child", lambda: os.waitpid(child, 0)[1])
    show("rest", copy.recv, 3, socket.MSG_WAITALL)
    copy.sendall(b"answer")
    show("passed on", control.recv, 100)
    for one in (copy, control, listener):
        one.close()


def datagrams(own, address):
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((own, 0))
    show("new", ready, sock, 0)
    show("to nobody", sock.send, b"x")
    for data in (b"", b"one", b"two-two"):
        sock.sendto(data, (address, PORT))
    show("empty", lambda: sock.recvfrom(100)[0])
    show("one", lambda: sock.recvfrom(100))
    show("cut", lambda: sock.recvmsg(3)[:3])
    show("nothing", sock.recv, 100, socket.MSG_DONTWAIT)
    sock.connect((address, PORT))
    show("connected", sock.send, b"three")
    show("three", sock.recv, 100)
    show("peer", sock.getpeername)
    sock.close()


def epoll(address):
    """Edges, one shots, and descriptors of pipes beside sockets."""
    sock = connected(address)
    reader, writer = os.pipe()
    instance = select.epoll()
    instance.register(sock, select.EPOLLIN | select.EPOLLET)
    instance.register(reader, select.EPOLLIN)
    names = {sock.fileno(): "socket", reader: "pipe"}

    def events(wait):
        return sorted((names[fd], hex(found)) for fd, found in instance.poll(wait))

    show("nothing", events, 0.05)
    sock.sendall(b"one")
    show("edge", events, 5)
    show("no edge", events, 0.05)
    sock.sendall(b"two")
    until(sock, select.POLLIN)
    time.sleep(0.2)
    show("second edge", events, 5)
    os.write(writer, b"x")
    show("pipe", events, 5)
    show("pipe again", events, 0)
    sock.recv(100)
    threading.Timer(0.1, os.write, (writer, b"y")).start()
    os.read(reader, 1)
    show("pipe later", events, 5)
    os.read(reader, 1)
    instance.modify(sock, select.EPOLLIN | select.EPOLLONESHOT)
    sock.sendall(b"three")
    show("once", events, 5)
    show("no more", events, 0.05)
    show("twice", instance.register, sock, select.EPOLLIN)
    instance.unregister(sock)
    show("gone", instance.unregister, sock)
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    poll.register(reader, select.POLLIN)
    sock.recv(100)
    threading.Timer(0.1, os.write, (writer, b"z")).start()
    show("poll", lambda: [(names[fd], found) for fd, found in poll.poll(5000)])
    os.read(reader, 1)
    threading.Timer(0.1, sock.sendall, (b"four",)).start()
    show("poll", lambda: [(names[fd], found) for fd, found in poll.poll(5000)])
    show("select", lambda: [len(one) for one in select.select([sock, reader], [], [], 5)])
    sock.close()


def main():
    if sys.argv[1] == "peer":
        return peer(sys.argv[2])
    own, address = sys.argv[1:]
    for part in (lambda: streams(own, address), lambda: ends(address), lambda: signals(address),
                 lambda: listening(own, address), lambda: datagrams(own, address), lambda: epoll(address)):
        part()
    print("done")


main()
