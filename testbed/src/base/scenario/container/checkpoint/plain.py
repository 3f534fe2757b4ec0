import os, select, signal, socket, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
UNREAD = bytes(range(256)) * 16
kept = open("kept", "w+b")
kept.write(UNREAD)
kept.seek(100)
deleted = open("deleted", "w+b")
deleted.write(UNREAD)
deleted.seek(200)
os.unlink("deleted")
from_child, to_parent = os.pipe()
near, far = socket.socketpair()
child = os.fork()
if child == 0:
    near.close()
    os.write(to_parent, UNREAD)
    far.sendall(b"written")
    while asked := far.recv(100):
        far.sendall(asked[::-1])
    os._exit(0)
far.close()
near.recv(100)


def check():
    if kept.read() != UNREAD[100:] or deleted.read() != UNREAD[200:]:
        return b"files\n"
    kept.seek(100)
    deleted.seek(200)
    near.sendall(b"abc")
    if near.recv(100) != b"cba":
        return b"child\n"
    if os.read(from_child, 1 << 20) != UNREAD:
        return b"pipe\n"
    os.write(to_parent, UNREAD)
    return b"ok\n"


door = socket.create_server(("", 90))
peers = [door]
print("ready", flush=True)
while True:
    for one in select.select(peers, [], [])[0]:
        if one is door:
            peers.append(door.accept()[0])
        elif one.recv(100):
            one.sendall(check())
        else:
            peers.remove(one)
            one.close()
