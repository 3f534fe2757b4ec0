#!/usr/bin/python3
"""Lists the tasks in a core file of a kernel, by drgn, one per line: process id and name.

Usage: tasks.py CORE LAYOUT, with LAYOUT a JSON object: the offset of `init_task` from the
kernel's `_text`, and of `struct task_struct` its size and the offsets of `tasks`, `pid` and
`comm`, in bytes. drgn itself would take these from debug information, which is larger than
all other files here. The kernel's address is in the core file's VMCOREINFO.
"""

import json
import struct
import sys

from drgn import Object, Program, TypeKind, TypeMember
from drgn.helpers.linux.list import list_for_each_entry

# Link address of x86-64 kernels.
TEXT = 0xFFFFFFFF81000000


def vmcoreinfo(core):
    """Values of the note VMCOREINFO. The notes' segment is the core file's first."""
    with open(core, "rb") as file:
        (offset, size) = struct.unpack_from("<Q16xQ", file.read(4096), 64 + 8)
        file.seek(offset)
        notes = file.read(size)
    at = 0
    while at < len(notes):
        (owner_size, size, _) = struct.unpack_from("<III", notes, at)
        content = at + 12 + (owner_size + 3 & ~3)
        if notes[at + 12 :].startswith(b"VMCOREINFO\0"):
            text = notes[content : content + size].decode()
            return dict(line.split("=", 1) for line in text.splitlines())
        at = content + (size + 3 & ~3)
    raise ValueError("there is no VMCOREINFO")


def structures(prog, layout):
    """The two types of the list."""

    def link():
        return prog.pointer_type(prog.type("struct list_head"))

    members = (TypeMember(link, "next", 0), TypeMember(link, "prev", 64))
    list_head = prog.struct_type("list_head", 16, members)
    text = prog.array_type(prog.int_type("char", 1, True), 16)
    members = (
        TypeMember(list_head, "tasks", 8 * layout["tasks"]),
        TypeMember(prog.int_type("int", 4, True), "pid", 8 * layout["pid"]),
        TypeMember(text, "comm", 8 * layout["comm"]),
    )
    task = prog.struct_type("task_struct", layout["size"], members)
    return {"list_head": list_head, "task_struct": task}


def main(core, layout):
    """Opens the core file and follows the list of all tasks."""
    prog = Program()
    prog.set_core_dump(core)
    types = structures(prog, layout)
    prog.add_type_finder(
        lambda kind, name, _: types.get(name) if kind == TypeKind.STRUCT else None
    )
    start = TEXT + int(vmcoreinfo(core)["KERNELOFFSET"], 16) + layout["init_task"]
    first = Object(prog, types["task_struct"], address=start)
    others = list_for_each_entry("struct task_struct", first.tasks.address_of_(), "tasks")
    for task in [first.address_of_(), *others]:
        print(task.pid.value_(), task.comm.string_().decode())


main(sys.argv[1], json.loads(sys.argv[2]))
