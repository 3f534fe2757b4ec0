# What the scripts have in common: each starts a program on the base, has it work, moves it to a node
# while it does, and sees that it goes on and ends as if nothing had happened.
import os, subprocess, sys, time

NODE = sys.argv[1]
TIMEOUT_S = 90


def move(pid):
    """Moves a process; it keeps its id."""
    done = subprocess.run(["insula", "move", str(pid), NODE], capture_output=True, text=True)
    assert done.returncode == 0, done
    print(done.stdout.strip(), flush=True)
    assert "insula-mirror" in open(f"/proc/{pid}/maps").read(), "it has no mirror"


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


def cpu_s(pid):
    """Processor time that the base has given a process, in s."""
    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
