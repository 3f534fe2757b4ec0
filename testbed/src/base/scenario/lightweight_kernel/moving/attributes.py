# A program keeps how its threads are scheduled and the processor time that it has used, and a core file
# has what one of a program that was started on the node has.
import resource, signal
from common import *

PROGRAM = """
import os, sys, time
begin = time.process_time()
while time.process_time() < begin + 0.3:
    pass
for line in sys.stdin:
    exec(line)
    sys.stdout.flush()
"""
NT_AUXV = 6


def unlimited():
    os.nice(3)
    resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


program = subprocess.Popen(
    [sys.executable, "-c", PROGRAM],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
    preexec_fn=unlimited,
)


def tell(line):
    """Has the program execute a line, and tells what it prints."""
    program.stdin.write(line + "\n")
    program.stdin.flush()
    return program.stdout.readline().strip()


SCHEDULING = "print(os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0), os.sched_getparam(0).sched_priority)"
assert tell(SCHEDULING) == "3 0 0"
before = float(tell("print(time.process_time())"))
auxiliary = open(f"/proc/{program.pid}/auxv", "rb").read()
move(program.pid)
assert tell(SCHEDULING) == "3 0 0"
after = float(tell("print(time.process_time())"))
# The base counts in ticks of 10 ms.
assert after > before - 0.02, (before, after)
tell("print(os.setpriority(os.PRIO_PROCESS, 0, 7), os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(5)))")
move_back(program.pid)
wanted = f"7 {os.SCHED_FIFO | os.SCHED_RESET_ON_FORK} 5"
assert tell(SCHEDULING) == wanted
move(program.pid)
assert tell(SCHEDULING) == wanted
program.send_signal(signal.SIGABRT)
assert_ends(program, -signal.SIGABRT)
(name,) = [name for name in os.listdir(".") if name.startswith("core")]
core = open(name, "rb").read()


def word(at, size):
    return int.from_bytes(core[at : at + size], "little")


def notes():
    """The notes of an ELF file: type and content."""
    headers, size, count = word(32, 8), word(54, 2), word(56, 2)
    for header in range(headers, headers + count * size, size):
        if word(header, 4) == 4:
            at, end = word(header + 8, 8), word(header + 8, 8) + word(header + 32, 8)
            while at < end:
                name_size, content_size, kind = word(at, 4), word(at + 4, 4), word(at + 8, 4)
                content = at + 12 + (name_size + 3 & ~3)
                yield kind, core[content : content + content_size]
                at = content + (content_size + 3 & ~3)


found = [content for kind, content in notes() if kind == NT_AUXV]
assert found == [auxiliary], (found, auxiliary)
