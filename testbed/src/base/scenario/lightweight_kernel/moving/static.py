# A static program of one thread, which computes, writes a file, and ends with a status of its own.
from common import *

SCRIPT = """
i=0
while [ ! -e stop ]; do
    i=$((i + 1))
    echo $i >> counted
done
exit 7
"""
program = subprocess.Popen(["busybox", "sh", "-c", SCRIPT])


def count():
    return int(("0\n" + open("counted").read()).split("\n")[-2]) if os.path.exists("counted") else 0


wait_for("it to count", lambda: count() > 100)
move(program.pid)
moved_at = count()
wait_for("it to go on counting", lambda: count() > moved_at + 100)
move_back(program.pid)
back_at = count()
wait_for("it to go on counting", lambda: count() > back_at + 100)
open("stop", "w").close()
assert_ends(program, 7)
counted = [int(line) for line in open("counted")]
assert counted == list(range(1, len(counted) + 1)), "a number is missing"
