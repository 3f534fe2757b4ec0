# What cannot be moved goes on where it was, and the reason is told.
import ctypes, signal
from common import *


def refused(pid, why, *more):
    for check in (["--check"], []):
        words = ["insula", "move", *check, str(pid), *(more or [NODE])]
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 1 and why in done.stderr, (words, done)


refused(2, "thread of the kernel")
refused(99999999, "there is no process")
sleeping = subprocess.Popen(["sleep", "1000"])
refused(sleeping.pid, "no node", "nosuch")
sleeping.send_signal(signal.SIGSTOP)
state = lambda: open(f"/proc/{sleeping.pid}/stat").read().rsplit(")", 1)[1].split()[0]
wait_for("it to be stopped", lambda: state() == "T")
refused(sleeping.pid, "it is stopped")
sleeping.send_signal(signal.SIGCONT)
wait_for("it to go on", lambda: state() == "S")
move(sleeping.pid)
refused(sleeping.pid, "runs on a node already")
sleeping.terminate()
assert_ends(sleeping, -signal.SIGTERM)


def filter_calls():
    # PR_SET_NO_NEW_PRIVS; PR_SET_SECCOMP with a filter that allows everything.
    libc = ctypes.CDLL(None)
    program = ctypes.create_string_buffer((6).to_bytes(2, "little") + b"\0\0" + b"\0\0\xff\x7f", 8)
    filter = ctypes.create_string_buffer(
        (1).to_bytes(8, "little") + ctypes.addressof(program).to_bytes(8, "little"), 16
    )
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(22, 2, ctypes.byref(filter)) == 0


filtered = subprocess.Popen(["sleep", "1000"], preexec_fn=filter_calls)
refused(filtered.pid, "seccomp")
filtered.kill()
assert_ends(filtered, -signal.SIGKILL)
limited = subprocess.Popen(["sh", "-c", "ulimit -v 100000; exec sleep 1000"])
wait_for("it to sleep", lambda: "sleep" in open(f"/proc/{limited.pid}/comm").read())
refused(limited.pid, "RLIMIT_AS")
limited.kill()
assert_ends(limited, -signal.SIGKILL)
