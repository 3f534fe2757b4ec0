# redis, which has several threads: it is moved while clients count, then saves from a forked child.
import socket, threading
from common import *

CLIENTS, ROUNDS = 6, 150
PATH = f"{os.getcwd()}/socket"
server = subprocess.Popen(
    ["redis-server", "--port", "0", "--unixsocket", PATH, "--save", "", "--logfile", "log"]
)


def ask(connection, *words):
    """Sends a command, and returns the line of its reply."""
    parts = b"".join(b"$%d\r\n%s\r\n" % (len(word), word.encode()) for word in words)
    connection.sendall(b"*%d\r\n%s" % (len(words), parts))
    reply = b""
    while not reply.endswith(b"\r\n"):
        more = connection.recv(4096)
        assert more, "the connection is closed"
        reply += more
    return reply.decode().strip()


def saves():
    """A forked child writes a dump, which then gets its name."""
    # It may not know yet that the last one has ended.
    wait_for("a save to start", lambda: "started" in ask(main, "bgsave"))
    wait_for("redis to save", lambda: os.path.exists("dump.rdb"))
    assert os.path.getsize("dump.rdb") > 0
    os.remove("dump.rdb")


def connect():
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(TIMEOUT_S)
    connection.connect(PATH)
    return connection


def listens():
    """A first connection; the socket has its name some time before connections are taken."""
    try:
        return connect()
    except (FileNotFoundError, ConnectionRefusedError):
        return None


class Client(threading.Thread):
    def __init__(self, number):
        super().__init__(daemon=True)
        self.key, self.done, self.failure = f"key:{number}", 0, None
        self.connection = connect()

    def run(self):
        try:
            while self.done < 2 * ROUNDS:
                found = ask(self.connection, "incr", self.key)
                assert found == f":{self.done + 1}", found
                self.done += 1
                if self.done == ROUNDS:
                    halfway.wait()
        except Exception as failure:
            self.failure = failure
            halfway.abort()


main = wait_for("redis to listen", listens)
wait_for("redis to answer", lambda: ask(main, "ping") == "+PONG")
halfway = threading.Barrier(CLIENTS)
clients = [Client(number) for number in range(CLIENTS)]
[client.start() for client in clients]
wait_for("the clients to count", lambda: min(client.done for client in clients) > ROUNDS // 4)
move(server.pid)
[client.join(TIMEOUT_S) for client in clients]
assert not any(client.failure for client in clients), [client.failure for client in clients]
assert all(client.done == 2 * ROUNDS for client in clients), "a client did not get on"
assert ask(main, "dbsize") == f":{CLIENTS}"
saves()
move_back(server.pid)
assert ask(main, "dbsize") == f":{CLIENTS}"
saves()
main.sendall(b"*2\r\n$8\r\nshutdown\r\n$6\r\nnosave\r\n")
assert_ends(server, 0)
