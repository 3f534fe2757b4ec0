# A program of several threads, which compute, share memory under locks, sleep, start and end.
from common import *

PROGRAM = """
import hashlib, queue, sys, threading, time
THREADS, ROUNDS = 6, 400
lock, total, waiting, moved = threading.Lock(), [0], queue.Queue(), threading.Event()
def work(number):
    state = b"%d" % number
    for _ in range(ROUNDS):
        for _ in range(40):
            state = hashlib.sha256(state * 8).digest()
        with lock:
            total[0] += 1
        time.sleep(0.001)
    # However long the moves take.
    while not moved.is_set():
        time.sleep(0.001)
    waiting.put((number, state.hex()))
threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
[thread.start() for thread in threads]
print("started", flush=True)
sys.stdin.read()
moved.set()
found = sorted(waiting.get() for _ in threads)
[thread.join() for thread in threads]
late = threading.Thread(target=lambda: found.append("late"))
late.start()
late.join()
print(total[0], found)
"""


def run(moves):
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert program.stdout.readline() == "started\n"
    if moves:
        for _ in range(2):
            move(program.pid)
            move_back(program.pid)
        move(program.pid)
    output = program.communicate(timeout=TIMEOUT_S)[0]
    assert program.returncode == 0, program.returncode
    return output


wanted = run(False)
found = run(True)
assert found == wanted, f"{found}\nnot {wanted}"
