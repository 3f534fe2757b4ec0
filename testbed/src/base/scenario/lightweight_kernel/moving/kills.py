# The command that moves a program is killed at random moments, both ways: the program goes on, on one
# side or the other, and its connection has every byte.
import os, random, socket
from common import *

COUNT, SEED = int(os.environ["KILLS"]), random.randrange(1 << 32)
PROGRAM = """
import socket, threading, time
door = socket.create_server(("127.0.0.1", 0))
turns = [0]
def compute():
    while True:
        turns[0] += 1
        time.sleep(0.001)
threading.Thread(target=compute, daemon=True).start()
print(door.getsockname()[1], flush=True)
peer = door.accept()[0]
while some := peer.recv(100):
    peer.sendall(b"%d " % turns[0] + some + b"\\n")
"""


class Client:
    """Asks again and again; each answer has the question, and a count that only grows."""

    def __init__(self, port):
        self.peer = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        self.lines, self.turns = self.peer.makefile(), 0

    def ask(self, number):
        self.peer.sendall(b"q%d" % number)
        turns, told = self.lines.readline().split()
        assert told == f"q{number}", told
        assert int(turns) >= self.turns, f"{turns} after {self.turns}"
        self.turns = int(turns)


def is_on_node(pid):
    return "insula-mirror" in open(f"/proc/{pid}/maps").read()


def is_traced(pid):
    for thread in os.listdir(f"/proc/{pid}/task"):
        lines = open(f"/proc/{pid}/task/{thread}/status").read().splitlines()
        if next(line.split()[1] for line in lines if line.startswith("TracerPid")) != "0":
            return True
    return False


def start_move(pid):
    target = "base" if is_on_node(pid) else NODE
    words = ["insula", "move", str(pid), target]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


print(f"{COUNT} kills with the seed {SEED}", flush=True)
random.seed(SEED)
program = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True)
pid, client = program.pid, Client(int(program.stdout.readline()))
began = time.monotonic()
moving = start_move(pid)
assert moving.wait() == 0, moving.communicate()
usual = time.monotonic() - began
moved = 0
for number in range(COUNT):
    was = is_on_node(pid)
    moving = start_move(pid)
    # The moment that is drawn: nothing is waited for.
    time.sleep(random.random() * usual)
    moving.kill()
    moving.communicate()
    client.ask(number)
    wait_for("the move to end", lambda: not is_traced(pid))
    client.ask(number)
    moved += is_on_node(pid) != was
    assert program.poll() is None, program.returncode
print(f"{moved} of {COUNT} moves were made in spite of a kill", flush=True)
client.peer.shutdown(socket.SHUT_RDWR)
assert_ends(program, 0)
