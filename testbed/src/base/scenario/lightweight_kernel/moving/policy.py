# A policy moves nginx, its master and its worker, to the node while it has many connections, and back
# when they are gone. What it records plays through the simulator with the same moves.
import socket
from nginx_server import *

MANY, FEW = 4, 2
POLICY = f"""
[[policy]]
name = "shop"
pid_file = "pid"
node = "{NODE}"
port = {PORT}
probe = ["/bin/true"]
when = ["connections > {MANY}", "latency-p50-ms > 0"]
back = ["connections < {FEW}"]
for_s = 2
rest_s = 4
"""
FILE = ["--file", "insula.toml", "--json"]
open("insula.toml", "w").write(POLICY)
master = start()
wait_for("its pid", lambda: os.path.exists("pid") and children(master))


def processes():
    return [str(master.pid), *children(master)]


def on_node():
    return ["insula-mirror" in open(f"/proc/{pid}/maps").read() for pid in processes()]


def begin(*words):
    """Starts the command with its output in a file."""
    return subprocess.Popen(["insula", "policy", *words, *FILE], stdout=open(words[0], "w"))


def lines(name):
    return [json.loads(line) for line in open(name).read().splitlines(keepends=True) if line.endswith("\n")]


def connect():
    connection = socket.create_connection(("127.0.0.1", PORT), timeout=TIMEOUT_S)
    ask(connection)
    return connection


def ask(connection):
    connection.sendall(b"GET /config HTTP/1.1\r\nHost: a\r\n\r\n")
    answer = b""
    while not answer.endswith(CONFIG.encode()):
        piece = connection.recv(65536)
        assert piece, "a connection was lost"
        answer += piece


running, recording = begin("run"), begin("record")
wait_for("a first decision", lambda: lines("run"))
assert on_node() == [False, False]
connections = [connect() for _ in range(MANY + 2)]
wait_for("the policy to move it to the node", lambda: on_node() == [True, True])
[ask(connection) for connection in connections]
[connection.close() for connection in connections]
wait_for("the policy to move it back", lambda: on_node() == [False, False])
connect().close()
# Told only once it is done.
moves = wait_for("both moves", lambda: [one for one in lines("run") if one["to"]][1:] and lines("run"))
moves = [one for one in moves if one["to"]]
assert [one["to"] for one in moves] == [NODE, "base"], moves
for one in moves:
    assert [str(of["pid"]) for of in one["moved"]] == processes(), one
    assert all(of["stopped_ms"] > 0 for of in one["moved"]), one


def played():
    """What the policy does with the record so far."""
    open("trace", "w").writelines(json.dumps(line) + "\n" for line in lines("record"))
    words = ["insula", "policy", "simulate", "--trace", "trace", *FILE]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done
    (outcome,) = json.loads(done.stdout)
    return outcome


# It has begun later than the policy.
wait_for("the record to have both moves", lambda: len(played()["moves"]) == 2)
running.terminate(), recording.terminate()
running.wait(), recording.wait()
outcome = played()
assert [one["to"] for one in outcome["moves"]] == [NODE, "base"], outcome
assert outcome["lost_s"]["best"] <= outcome["lost_s"]["policy"], outcome
print("moves:", [one["moved"] for one in moves], flush=True)
end(master)
