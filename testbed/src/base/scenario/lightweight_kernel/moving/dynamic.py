# A dynamic program of one thread, with a TCP connection, a file that it reads and writes, handlers
# of signals, and a child that it waits for.
import hashlib, signal, socket
from common import *

PROGRAM = """
import hashlib, os, signal, socket, subprocess, sys
caught = []
signal.signal(signal.SIGUSR1, lambda *_: caught.append(1))
peer = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
state = b""
with open("log", "w+b") as log:
    while True:
        words = peer.recv(64, socket.MSG_WAITALL)
        if not words:
            break
        state = hashlib.sha256(state + words).digest()
        log.write(state)
        log.flush()
        log.seek(-32, os.SEEK_END)
        peer.sendall(log.read(32))
child = subprocess.run(["/bin/sh", "-c", "echo from a child; exit 3"], capture_output=True, text=True)
print(len(caught), child.stdout.strip(), child.returncode)
sys.exit(5)
"""
listener = socket.create_server(("127.0.0.1", 0))
program = subprocess.Popen(
    [sys.executable, "-c", PROGRAM, str(listener.getsockname()[1])],
    stdout=subprocess.PIPE,
    text=True,
)
peer, _ = listener.accept()
state = b""


def exchange(rounds):
    global state
    for number in range(rounds):
        words = hashlib.sha512(number.to_bytes(8, "little") + state).digest()
        state = hashlib.sha256(state + words).digest()
        peer.sendall(words)
        found = peer.recv(32, socket.MSG_WAITALL)
        assert found == state, f"wrong bytes in round {number}"


exchange(50)
program.send_signal(signal.SIGUSR1)
exchange(50)
# It waits in recv(2).
move(program.pid)
program.send_signal(signal.SIGUSR1)
exchange(100)
program.send_signal(signal.SIGUSR1)
exchange(50)
move_back(program.pid)
exchange(50)
move(program.pid)
exchange(10)
move_back(program.pid)
peer.close()
output = program.communicate(timeout=TIMEOUT_S)[0]
assert output == "3 from a child 3\n", output
assert program.returncode == 5, program.returncode
assert len(open("log", "rb").read()) == 32 * 310
