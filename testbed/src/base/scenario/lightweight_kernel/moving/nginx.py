# nginx, with connections that stay open: its worker is moved while they transfer a file.
import hashlib, http.client, threading
from nginx_server import *

CONNECTIONS = 8
content = b"".join(hashlib.sha256(b"%d" % number).digest() for number in range(16384))
open("file", "wb").write(content)
master = start()


def get(connection):
    connection.request("GET", "/file")
    answer = connection.getresponse()
    assert answer.status == 200
    assert answer.read() == content, "wrong bytes"
    assert not answer.will_close, "it closes the connection"


class Client(threading.Thread):
    def __init__(self):
        super().__init__(daemon=True)
        self.done, self.stops, self.failure = 0, False, None

    def run(self):
        try:
            connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=TIMEOUT_S)
            connection.connect()
            own = connection.sock.getsockname()
            while not self.stops:
                get(connection)
                assert connection.sock.getsockname() == own, "a new connection"
                self.done += 1
        except Exception as failure:
            self.failure = failure


def is_listening():
    try:
        get(http.client.HTTPConnection("127.0.0.1", PORT))
        return True
    except ConnectionError:
        return False


def advance(clients, rounds):
    wanted = [client.done + rounds for client in clients]

    def have_advanced():
        failures = [client.failure for client in clients if client.failure]
        assert not failures, failures
        return all(client.done >= count for client, count in zip(clients, wanted))

    wait_for("all connections to go on", have_advanced)


wait_for("nginx to answer", is_listening)
clients = [Client() for _ in range(CONNECTIONS)]
[client.start() for client in clients]
advance(clients, 2)
(worker,) = children(master)
move(int(worker))
advance(clients, 4)
# A connection that it accepts on the node.
assert is_listening()
move_back(int(worker))
advance(clients, 4)
assert is_listening()
for client in clients:
    client.stops = True
    client.join()
assert children(master) == [worker], "the worker has been replaced"
end(master)
