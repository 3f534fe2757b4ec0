# Content: reads, writes and offsets, descriptors that are copied and inherited.
cd /tmp/served || exit 1
export LC_ALL=C
seq 1 20000 > numbers; wc -c < numbers; sha256sum < numbers; tail -n 2 numbers; head -c 12 numbers | od -c
cat numbers numbers > twice; cmp numbers twice 2>&1; truncate -s 5 numbers; cat numbers; echo
truncate -s 10000 numbers; od -An -c -j 4 -N 4 numbers; stat -c %s numbers
echo more >> numbers; stat -c %s numbers
exec 3>shared; echo first >&3; (echo second >&3); exec 4>&3; echo third >&4; exec 3>&- 4>&-; cat shared
exec 5<shared; read -r line <&5; echo "$line"; cat <&5; exec 5<&-
dd if=/dev/zero of=sparse bs=1 count=1 seek=1000000 2>/dev/null; stat -c %s sparse; sha256sum sparse
echo gone > gone; exec 6<gone; rm gone; cat <&6; exec 6<&-
sort -rn twice | head -3; grep -c 7 twice; sed -i s/1/x/g shared; cat shared
cp twice copy && cmp twice copy && echo same
python3 - <<'PYTHON'
import mmap, os
with open("copy", "r+b") as file:
    private = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    private[:4] = b"mine"
    print(private[:10], file.read(6), os.fstat(file.fileno()).st_size)
    print(os.pread(file.fileno(), 5, 100), os.preadv(file.fileno(), [bytearray(3), bytearray(4)], 7))
    print(os.writev(file.fileno(), [b"ab", b"", b"cde"]), file.seek(0, 2))
    child = os.fork()
    if child == 0:
        os.lseek(file.fileno(), 3, 0)
        os._exit(0)
    os.waitpid(child, 0)
    print(os.lseek(file.fileno(), 0, 1))
    for bad in (lambda: os.pread(file.fileno(), 1, -1), lambda: os.listdir("copy"), lambda: open("copy/x")):
        try:
            bad()
        except OSError as error:
            print(error.errno)
PYTHON
