# What the scripts have in common: each starts a program on the base, has it work, moves it to a node
# while it does, and sees that it goes on and ends as if nothing had happened.
import json, os, subprocess, sys, time

NODE = sys.argv[1]
TIMEOUT_S = 90


def move(pid):
    """Moves a process; it keeps its id."""
    before = calls()
    done = subprocess.run(["insula", "move", str(pid), NODE], capture_output=True, text=True)
    assert done.returncode == 0, done
    print(done.stdout.strip(), flush=True)
    assert "insula-mirror" in open(f"/proc/{pid}/maps").read(), "it has no mirror"
    wait_for("its node to run it", lambda: calls() > before)


def move_back(pid):
    """Moves a process back: the node runs it no more."""
    done = subprocess.run(["insula", "move", str(pid), "base"], capture_output=True, text=True)
    assert done.returncode == 0, done
    print(done.stdout.strip(), flush=True)
    assert "insula-mirror" not in open(f"/proc/{pid}/maps").read(), "it has a mirror"


def calls():
    """Number of system calls that programs have made on the node."""
    done = subprocess.run(["insula", "stats", NODE, "--json"], capture_output=True, text=True)
    (node,) = json.loads(done.stdout)
    return sum(call["count"] for call in node["programs"]["calls"])


def wait_for(what, check):
    """Waits until a check returns something."""
    limit = time.monotonic() + TIMEOUT_S
    while True:
        found = check()
        if found:
            return found
        assert time.monotonic() < limit, f"waited in vain for {what}"
        time.sleep(0.02)


def assert_ends(process, status):
    """Waits for a child of this process."""
    found = process.wait(timeout=TIMEOUT_S)
    assert found == status, f"status {found}, not {status}"
