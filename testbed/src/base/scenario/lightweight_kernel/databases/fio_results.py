# Prints what fio has done, and no times.
import json
with open("result") as result:
    text = result.read()
# Notes may come before.
for job in json.loads(text[text.index("{"):])["jobs"]:
    print(job["error"], *(f"{job[way]['total_ios']} {way}s, {job[way]['io_bytes']} bytes" for way in ("write", "read")))
