cd /tmp/served || exit 1
python3 - <<'END'
import errno, fcntl, os, signal, sqlite3, struct, subprocess, sys

SHARED, EXCLUSIVE, REMOVE = fcntl.LOCK_SH, fcntl.LOCK_EX, fcntl.LOCK_UN
DONT_WAIT = fcntl.LOCK_NB
FLOCK = "hhqqi4x"


def tell(what, call, *arguments):
    try:
        call(*arguments)
        print(what, "done", flush=True)
    except OSError as error:
        print(what, errno.errorcode[error.errno], flush=True)


def child(body):
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        try:
            body()
            os._exit(0)
        except BaseException as error:
            print("failed:", repr(error), flush=True)
            os._exit(1)
    return pid


def in_child(body):
    print("child", os.waitpid(child(body), 0)[1], flush=True)


file = os.open("file", os.O_RDWR | os.O_CREAT)
os.write(file, b"x" * 1000)

# Ranges of a process: others may have what does not overlap, or share it.
fcntl.lockf(file, EXCLUSIVE, 100, 100)
fcntl.lockf(file, SHARED, 100, 300)


def others():
    for kind, name in (SHARED, "shared"), (EXCLUSIVE, "exclusive"):
        for start in 0, 50, 99, 100, 150, 200, 250, 299, 300, 399, 400:
            tell(f"{name} {start}", fcntl.lockf, file, kind | DONT_WAIT, 50, start)
    fcntl.lockf(file, REMOVE)
    asked = struct.pack(FLOCK, fcntl.F_WRLCK, 0, 150, 0, 0)
    found = struct.unpack(FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, asked))
    print("in the way", found[:4], found[4] == os.getppid(), flush=True)
    asked = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_END, -850, 10, 0)
    print("from the end", struct.unpack(FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, asked))[:4], flush=True)
    asked = struct.pack(FLOCK, fcntl.F_WRLCK, 0, 500, 10, 7)
    print("nothing", struct.unpack(FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, asked)), flush=True)


in_child(others)

# What a process unlocks in the middle is free; what it changes is changed.
fcntl.lockf(file, REMOVE, 20, 140)
fcntl.lockf(file, EXCLUSIVE, 50, 320)
in_child(lambda: [tell(f"middle {at}", fcntl.lockf, file, SHARED | DONT_WAIT, 5, at) for at in (135, 140, 155, 160, 310, 320, 370)])

# Closing any descriptor of the file removes them all.
os.close(os.open("file", os.O_RDONLY))
in_child(lambda: tell("after a close", fcntl.lockf, file, EXCLUSIVE | DONT_WAIT))

# What may be locked depends on how the file is open.
read, write = os.open("file", os.O_RDONLY), os.open("file", os.O_WRONLY)
for fd, name in (read, "read"), (write, "written"):
    tell(f"{name} shared", fcntl.lockf, fd, SHARED | DONT_WAIT)
    tell(f"{name} exclusive", fcntl.lockf, fd, EXCLUSIVE | DONT_WAIT)
os.close(read)
os.close(write)
place = os.open("file", os.O_PATH)
tell("a place", fcntl.flock, place, SHARED)
tell("a place's range", fcntl.lockf, place, SHARED)
os.close(place)
for words in (3, 0, 0, 0), (0, 3, 0, 0), (0, 0, -1, 0), (0, 0, 10, -20), (0, 0, 2**63 - 1, 2):
    tell(f"bad {words}", fcntl.fcntl, file, fcntl.F_SETLK, struct.pack(FLOCK, *words, 0))

# One waits until another unlocks, and until another ends.
fcntl.lockf(file, EXCLUSIVE, 10, 0)
ready, told = os.pipe()


def waits(how=fcntl.lockf):
    os.write(told, b"x")
    how(file, EXCLUSIVE)
    print("it has the lock", flush=True)


waiting = child(waits)
os.read(ready, 1)
print("unlocks", flush=True)
fcntl.lockf(file, REMOVE)
print("waited", os.waitpid(waiting, 0)[1], flush=True)


def holds():
    fcntl.lockf(file, EXCLUSIVE)
    os.write(told, b"x")
    signal.pause()


holder = child(holds)
os.read(ready, 1)
tell("while it holds", fcntl.lockf, file, EXCLUSIVE | DONT_WAIT)
os.kill(holder, signal.SIGKILL)
os.waitpid(holder, 0)
tell("when it was killed", fcntl.lockf, file, EXCLUSIVE | DONT_WAIT)


# A signal ends a wait.
def interrupted():
    class Alarm(Exception):
        pass

    def handler(*_):
        raise Alarm

    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        fcntl.lockf(file, EXCLUSIVE)
        print("not interrupted", flush=True)
    except Alarm:
        print("interrupted", flush=True)


in_child(interrupted)
fcntl.lockf(file, REMOVE)

# Locks of open file descriptions: of all their descriptors, in all processes.
one, two = os.open("file", os.O_RDWR), os.open("file", os.O_RDWR)
copy = os.dup(one)
for how, name in (fcntl.flock, "flock"), (
    lambda fd, kind: fcntl.fcntl(
        fd,
        fcntl.F_OFD_SETLK if kind & DONT_WAIT else fcntl.F_OFD_SETLKW,
        struct.pack(
            FLOCK,
            {SHARED: fcntl.F_RDLCK, EXCLUSIVE: fcntl.F_WRLCK, REMOVE: fcntl.F_UNLCK}[kind & ~DONT_WAIT],
            0, 0, 0, 0,
        ),
    ),
    "description",
):
    how(one, SHARED)
    tell(f"{name} shared twice", how, two, SHARED | DONT_WAIT)
    tell(f"{name} not alone", how, copy, EXCLUSIVE | DONT_WAIT)
    how(two, REMOVE)
    tell(f"{name} of a copy", how, copy, EXCLUSIVE | DONT_WAIT)
    tell(f"{name} of another", how, two, SHARED | DONT_WAIT)
    in_child(lambda: tell(f"{name} of a child", how, one, EXCLUSIVE | DONT_WAIT))
    tell(f"{name} is still there", how, two, SHARED | DONT_WAIT)
    how(one, REMOVE)
    tell(f"{name} is free", how, two, EXCLUSIVE | DONT_WAIT)
    how(two, REMOVE)
os.close(one)
fcntl.flock(copy, EXCLUSIVE)
tell("while a copy is open", fcntl.flock, two, EXCLUSIVE | DONT_WAIT)
os.close(copy)
tell("when none is", fcntl.flock, two, EXCLUSIVE | DONT_WAIT)

# SQLite, whose processes exclude each other by such locks.
data = sqlite3.connect("data", isolation_level=None, timeout=0)
data.execute("create table t (n integer primary key, text text)")


def busy():
    other = sqlite3.connect("data", isolation_level=None, timeout=0)
    try:
        other.execute("insert into t values (1000, 'no')")
    except sqlite3.OperationalError as error:
        print(error, flush=True)


data.execute("begin immediate")
data.executemany("insert into t values (?, ?)", ((n, "x" * n) for n in range(200)))
in_child(busy)
data.execute("commit")


def dies():
    other = sqlite3.connect("data", isolation_level=None)
    other.execute("pragma cache_size = 1")
    other.execute("begin")
    other.execute("update t set text = text || 'y'")
    os.kill(os.getpid(), signal.SIGKILL)


in_child(dies)
print(os.path.exists("data-journal"))
print(data.execute("select count(*), sum(length(text)) from t").fetchone())
print(data.execute("pragma integrity_check").fetchone(), os.path.exists("data-journal"))


def counts():
    other = sqlite3.connect("data", isolation_level=None, timeout=60)
    for _ in range(25):
        other.execute("begin immediate")
        other.execute("update t set text = cast(text as integer) + 1 where n = 0")
        other.execute("commit")


data.execute("update t set text = '0' where n = 0")
counting = [child(counts) for _ in range(3)]
print([os.waitpid(pid, 0)[1] for pid in counting])
print(data.execute("select text from t where n = 0").fetchone())
END
