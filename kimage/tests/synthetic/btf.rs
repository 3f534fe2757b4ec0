//! A `.BTF` section, built type by type.

/// A member: name, type, offset in bits, size of a bit field or 0.
pub type Member = (&'static str, u32, u32, u32);

/// Collects types.
#[derive(Default)]
pub struct Builder {
    types: Vec<u8>,
    strings: Vec<u8>,
    count: u32,
}

impl Builder {
    pub fn integer(&mut self, name: &str, size: u32) -> u32 {
        self.add(name, 1 << 24, size, &[size * 8])
    }

    pub fn pointer(&mut self, target: u32) -> u32 {
        self.add("", 2 << 24, target, &[])
    }

    pub fn array(&mut self, element: u32, count: u32) -> u32 {
        self.add("", 3 << 24, 0, &[element, element, count])
    }

    pub fn enumeration(&mut self, name: &str, values: &[(&str, u32)]) -> u32 {
        let entries = values.iter();
        let entries: Vec<u32> = entries
            .flat_map(|&(name, value)| [self.string(name), value])
            .collect();
        self.add(name, 6 << 24 | values.len() as u32, 4, &entries)
    }

    pub fn typedef(&mut self, name: &str, target: u32) -> u32 {
        self.add(name, 8 << 24, target, &[])
    }

    pub fn constant(&mut self, target: u32) -> u32 {
        self.add("", 10 << 24, target, &[])
    }

    pub fn structure(&mut self, name: &str, size: u32, members: &[Member]) -> u32 {
        self.composite(4, name, size, members)
    }

    pub fn union(&mut self, name: &str, size: u32, members: &[Member]) -> u32 {
        self.composite(5, name, size, members)
    }

    fn composite(&mut self, kind: u32, name: &str, size: u32, members: &[Member]) -> u32 {
        let has_bitfields = members.iter().any(|member| member.3 != 0);
        let fields: Vec<u32> = members
            .iter()
            .flat_map(|&(name, type_id, bit_offset, bits)| {
                [self.string(name), type_id, bits << 24 | bit_offset]
            })
            .collect();
        let info = u32::from(has_bitfields) << 31 | kind << 24 | members.len() as u32;
        self.add(name, info, size, &fields)
    }

    fn add(&mut self, name: &str, info: u32, size_or_type: u32, more: &[u32]) -> u32 {
        let name = self.string(name);
        for word in [name, info, size_or_type].iter().chain(more) {
            self.types.extend(word.to_le_bytes());
        }
        self.count += 1;
        self.count
    }

    fn string(&mut self, text: &str) -> u32 {
        if self.strings.is_empty() {
            self.strings.push(0);
        }
        if text.is_empty() {
            return 0;
        }
        let offset = self.strings.len() as u32;
        self.strings.extend(text.bytes());
        self.strings.push(0);
        offset
    }

    pub fn section(self) -> Vec<u8> {
        let mut section = vec![0x9f, 0xeb, 1, 0];
        let types_size = self.types.len() as u32;
        for word in [24, 0, types_size, types_size, self.strings.len() as u32] {
            section.extend(word.to_le_bytes());
        }
        section.extend(self.types);
        section.extend(self.strings);
        section
    }
}

/// The types of the kernel's log, as in Linux 6.1 and 6.12.
pub fn log_types() -> Vec<u8> {
    types(false)
}

/// The same for Linux 7.2, whose interrupt counts are an array.
pub fn newer_log_types() -> Vec<u8> {
    types(true)
}

fn types(newer: bool) -> Vec<u8> {
    let mut btf = Builder::default();
    let long = btf.integer("long unsigned int", 8);
    let int = btf.integer("unsigned int", 4);
    let short = btf.integer("short unsigned int", 2);
    let byte = btf.integer("unsigned char", 1);
    let pointer = btf.pointer(byte);
    let counter = btf.structure("", 8, &[("counter", long, 0, 0)]);
    let atomic = btf.typedef("atomic_long_t", counter);
    let lpos = btf.structure(
        "prb_data_blk_lpos",
        16,
        &[("begin", long, 0, 0), ("next", long, 64, 0)],
    );
    btf.structure(
        "prb_desc",
        24,
        &[("state_var", atomic, 0, 0), ("text_blk_lpos", lpos, 64, 0)],
    );
    let names = ["descs", "infos", "head_id", "tail_id", "last_finalized_id"];
    let mut members = vec![("count_bits", int, 0, 0)];
    members.extend(names.iter().zip(1..).map(|(name, index)| {
        (
            *name,
            if index <= 2 { pointer } else { atomic },
            64 * index,
            0,
        )
    }));
    let descs = btf.structure("prb_desc_ring", 48, &members);
    let text = [
        ("size_bits", int, 0, 0),
        ("data", pointer, 64, 0),
        ("head_lpos", atomic, 128, 0),
    ];
    let data = btf.structure("prb_data_ring", 32, &text);
    let ring = [
        ("desc_ring", descs, 0, 0),
        ("text_data_ring", data, 384, 0),
        ("fail", atomic, 640, 0),
    ];
    btf.structure("printk_ringbuffer", 88, &ring);
    let info = [
        ("seq", long, 0, 0),
        ("ts_nsec", long, 64, 0),
        ("text_len", short, 128, 0),
        ("facility", byte, 144, 0),
        ("flags", byte, 152, 5),
        ("level", byte, 157, 3),
        ("caller_id", int, 160, 0),
    ];
    btf.structure("printk_info", 88, &info);
    let stat = if newer {
        btf.enumeration("irq_stat_counts", &[("IRQ_COUNT_RESCHEDULE", 1)]);
        let counts = btf.array(int, 2);
        btf.structure("", 8, &[("counts", counts, 0, 0)])
    } else {
        let counts = [
            ("irq_call_count", int, 0, 0),
            ("irq_resched_count", int, 32, 0),
        ];
        btf.structure("", 8, &counts)
    };
    btf.typedef("irq_cpustat_t", stat);
    let states = [("SYSTEM_RUNNING", 3), ("SYSTEM_HALT", 4)];
    btf.enumeration("system_states", &states);
    btf.section()
}
