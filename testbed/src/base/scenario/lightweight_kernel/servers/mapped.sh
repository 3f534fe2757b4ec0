# Mapped files: stores and calls meet, between processes, too; files grow and shrink meanwhile; databases that map.
cd /tmp/served || exit 1
export LC_ALL=C
python3 - <<'PYTHON'
import mmap, os, sqlite3, sys

def failed(action):
    try:
        action()
        print("done")
    except OSError as error:
        print(error.errno)
    except ValueError as error:
        print(error)

with open("mapped", "w+b") as file:
    file.write(b"abc" * 3000)
    file.flush()
    fd = file.fileno()
    shared = mmap.mmap(fd, 9000)
    other = mmap.mmap(fd, 4096, offset=4096)
    shared[4096:4099] = b"XYZ"
    print(other[:5], os.pread(fd, 5, 4096))
    os.pwrite(fd, b"written", 8995)
    print(shared[8990:])
    child = os.fork()
    if child == 0:
        shared[0:5] = b"child"
        os._exit(0)
    os.waitpid(child, 0)
    print(shared[:8], os.pread(fd, 8, 0))
    shared.flush()
    # What grows is there, as far as it was mapped.
    os.ftruncate(fd, 40000)
    more = mmap.mmap(fd, 40000)
    os.ftruncate(fd, 100)
    os.ftruncate(fd, 40000)
    print(more[:6], more[90:110], sum(more[100:]))
    more[39990:] = b"0123456789"
    os.pwrite(fd, b"x" * 5000, 20000)
    print(more[19999:20003], more[24999:25002], os.pread(fd, 10, 39990))
    more.flush()
    os.unlink("mapped")
print(shared[:5])
more.close()
shared.close()
with open("read", "wb") as file:
    file.write(b"r" * 10)
with open("read", "rb") as file:
    only = mmap.mmap(file.fileno(), 10, prot=mmap.PROT_READ)
    print(only[:])
    failed(lambda: mmap.mmap(file.fileno(), 10))
with open("read", "ab") as file:
    failed(lambda: mmap.mmap(file.fileno(), 10, prot=mmap.PROT_READ))
print(open("read", "rb").read())

database = sqlite3.connect("wal.db", timeout=60)
print(database.execute("pragma journal_mode=wal").fetchone())
database.execute("create table t (n integer primary key, text)")
database.commit()
database.close()
for worker in range(2):
    if os.fork() == 0:
        own = sqlite3.connect("wal.db", timeout=60)
        for n in range(20):
            own.execute("insert into t (text) values (?)", (f"{worker} {n}",))
            own.commit()
        own.close()
        os._exit(0)
print([os.wait()[1] for _ in range(2)])
database = sqlite3.connect("wal.db")
print(database.execute("select count(*), count(distinct text) from t").fetchone())
print(database.execute("pragma integrity_check").fetchone())
PYTHON
rm -f wal.db* read
