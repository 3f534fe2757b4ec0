# fio writes a file of $1 MiB at random, with checksums, and verifies it: by each engine.
for engine in libaio mmap; do
	fio --name=verified --filename=file --size="$1m" --bs=4k --ioengine="$engine" --iodepth=8 \
		--rw=randwrite --verify=crc32c --verify_fatal=1 --output-format=json --output=result
	echo "$engine"
	python3 results.py
	rm file
done
