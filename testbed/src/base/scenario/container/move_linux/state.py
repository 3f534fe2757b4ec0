# A tree of processes that has all kinds of state that must outlive a move, and checks it itself: a
# connection to port 82 that sends a line has it check everything, and gets `ok` or what is wrong.
import ctypes, fcntl, os, resource, select, selectors, signal, socket, struct, time, traceback

# As many connections as it may have, which servers raise it to.
descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
libc = ctypes.CDLL(None, use_errno=True)
UNREAD = bytes(range(256)) * 16


def called(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def timer(first_s, then_s):
    made = called(libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK))
    whole = lambda s: (int(s), int(s % 1 * 1e9))
    times = struct.pack("4q", *whole(then_s), *whole(first_s))
    called(libc.timerfd_settime(made, 0, times, None))
    return made


def left_s(made):
    times = ctypes.create_string_buffer(32)
    called(libc.timerfd_gettime(made, times))
    return struct.unpack("4q", times.raw)[2]


# A file without a name, half read.
deleted = open("/tmp/deleted", "w+b")
deleted.write(UNREAD)
deleted.seek(100)
os.unlink("/tmp/deleted")
# A file that another process locks, by a descriptor of its own.
locked = os.open("/tmp/locked", os.O_CREAT | os.O_RDWR)

# A child, with bytes in the pipe that nobody has read, which answers over a pair of sockets.
from_child, to_parent = os.pipe()
near, far = socket.socketpair()
child = os.fork()
if child == 0:
    caught = []
    signal.signal(signal.SIGUSR1, lambda *_: caught.append(1))
    own = os.open("/tmp/locked", os.O_RDWR)
    os.lockf(own, os.F_LOCK, 0)
    os.write(to_parent, UNREAD)
    while asked := far.recv(100):
        far.sendall(asked[::-1] + b"%d" % len(caught))
    os._exit(0)
deadline = time.monotonic() + 60
while not struct.unpack("i", fcntl.ioctl(from_child, 0x541B, b"    "))[0] == len(UNREAD):
    assert time.monotonic() < deadline, "the child does not write"

# Unix sockets: with a name, and with messages that nobody has read.
named = socket.socket(socket.AF_UNIX)
named.bind("/tmp/named")
named.listen()
messages = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
messages[0].send(b"one")
messages[0].send(b"two")

kept, bell = os.eventfd(7, os.EFD_NONBLOCK), os.eventfd(0, os.EFD_NONBLOCK)
expired, once, periodic = timer(1e-9, 0), timer(3600, 0), timer(0.1, 0.1)
watch = called(libc.inotify_init1(os.O_NONBLOCK))
os.mkdir("/tmp/watched")
called(libc.inotify_add_watch(watch, b"/tmp/watched", 0x100))
held_ends = []

waited = selectors.EpollSelector()
for one in (bell, watch, near):
    waited.register(one, selectors.EVENT_READ, ("state", one))


def door(port):
    listens = socket.create_server(("", port), backlog=1024)
    waited.register(listens, selectors.EVENT_READ, ("door", port))
    return listens


def is_(found, wanted, what):
    if found != wanted:
        raise AssertionError(f"{what}: {found!r:.60}, not {wanted!r:.60}")


def check_files():
    is_(deleted.tell(), 100, "offset of the deleted file")
    is_(deleted.read(), UNREAD[100:], "the deleted file")
    deleted.seek(100)
    try:
        os.lockf(locked, os.F_TLOCK, 0)
        raise AssertionError("the child's lock is gone")
    except OSError:
        pass


def check_processes():
    os.kill(child, signal.SIGUSR1)
    checks[0] += 1
    near.sendall(b"abc")
    is_(near.recv(100), b"cba%d" % checks[0], "the child's answer")
    is_(os.read(from_child, 1 << 20), UNREAD, "the pipe")
    os.write(to_parent, UNREAD)


def check_unix():
    asks = socket.socket(socket.AF_UNIX)
    asks.connect("/tmp/named")
    answers = named.accept()[0]
    answers.sendall(b"named")
    is_(asks.recv(100), b"named", "the socket with a name")
    for text in (b"one", b"two"):
        is_(messages[1].recv(100), text, "an unread message")
        messages[0].send(text)


def check_descriptors():
    is_(os.eventfd_read(kept), 7, "the eventfd")
    os.eventfd_write(kept, 7)
    os.eventfd_write(bell, 1)
    ready = {key.data[1] for key, _ in waited.select(0.5)}
    is_(bell in ready, True, "epoll on an eventfd")
    os.eventfd_read(bell)
    is_(struct.unpack("Q", os.read(expired, 8))[0], 1, "a timer that has expired")
    called(libc.timerfd_settime(expired, 0, struct.pack("4q", 0, 0, 0, 1), None))
    for _ in range(2):
        is_(bool(select.select([periodic], [], [], 20)[0]), True, "a timer that expires again and again")
        os.read(periodic, 8)
    is_(0 < left_s(once) <= 3600, True, "a timer of an hour")
    name = f"new{checks[0]}"
    open(f"/tmp/watched/{name}", "w").close()
    told = os.read(watch, 4096)
    is_(told[16:].rstrip(b"\0"), name.encode(), "what inotify tells")


def check_held():
    """Connections whose bytes nobody has read; their peers may have closed their half."""
    for one, may_send in held_ends:
        one.settimeout(20)
        got = b""
        while len(got) < len(UNREAD):
            some = one.recv(1 << 16)
            if not some:
                break
            got += some
        is_(got, UNREAD, "unread bytes of a connection")
        if may_send:
            one.sendall(b"late")
        one.close()
    held_ends.clear()


checks = [0]


def check():
    try:
        for part in (check_files, check_processes, check_unix, check_descriptors, check_held):
            part()
        return b"ok\n"
    except Exception as error:
        line = traceback.extract_tb(error.__traceback__)[1].lineno
        return f"{type(error).__name__} at line {line}: {error}\n".encode()


# 80 echoes. 81 holds what comes unread; 83 does so when it has closed its own half. 84 sends more than
# anybody reads. 85 sends and closes at once.
doors = {port: door(port) for port in (80, 81, 82, 83, 84, 85)}
print("ready", flush=True)
while True:
    for key, _ in waited.select():
        kind, what = key.data
        if kind == "door":
            peer = key.fileobj.accept()[0]
            if what in (80, 82):
                waited.register(peer, selectors.EVENT_READ, ("peer", what))
            elif what in (81, 83):
                if what == 83:
                    peer.shutdown(socket.SHUT_WR)
                held_ends.append((peer, what == 81))
            elif what == 84:
                peer.setblocking(False)
                sent = peer.send(UNREAD * 64)
                peer.setblocking(True)
                waited.register(peer, selectors.EVENT_READ, ("rest", sent))
            else:
                peer.sendall(UNREAD)
                peer.close()
        elif kind == "peer":
            some = key.fileobj.recv(1 << 16)
            if some:
                key.fileobj.sendall(some if what == 80 else check())
            else:
                waited.unregister(key.fileobj)
                key.fileobj.close()
        elif kind == "rest":
            # Its peer wants to know how many bytes it is sent.
            if key.fileobj.recv(100):
                key.fileobj.sendall(struct.pack("<Q", what))
            else:
                waited.unregister(key.fileobj)
                key.fileobj.close()
