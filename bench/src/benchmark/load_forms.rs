//! Forms in which a kernel can be kept resident, compared.

use insula_abi as abi;
use insula_driver::Memory;
use insula_driver::name::Name;
use insula_image as image;
use std::time::Instant;
use testbed::base::{Finding, Shape};
use testbed::host::root::Root;

use super::{Benchmark, Row};
use crate::inside::{Inside, wait_until_ready};

const KERNELS: [&str; 2] = ["6.1", "6.12"];
const FORMS: [&str; 2] = ["compressed", "decompressed"];
const NODE: &str = "node";
const NODE_BYTES: u64 = 256 << 20;
const SIZE: [&str; 4] = ["--cpus", "1", "--memory", "256M"];

const START: &str = "insula run --image … --cpus 1 --memory 256M";
const COPY: &str = "the copy in `insula run`, by the library";

pub(super) const BENCHMARK: Benchmark = Benchmark {
    name: "load-forms",
    title: "Which form of the kernel to keep resident",
    how: "*Compressed* keeps the bzImage as it is: little to copy, the node unpacks it (and moves \
          to a random address). *Decompressed* keeps the ELF file inside, laid out: much to copy, \
          nothing to unpack, no address randomisation. *Copy* is copying the kernel's segments \
          from resident to node memory; *entry* is from Enter to the kernel's first instruction, \
          *init* to the line of the node's init in its log. Cores and memory come from the pool; \
          the base has three cores left. In emulation copying is 5 to 36 times slower than on \
          hardware, and arithmetic, as in unpacking, is not: the copies' share is overstated.",
    machine: Shape::USUAL,
    root: Root::Test,
    rounds: 2,
    inside,
    outside: None,
    counted: None,
    series: &[],
    rows: &[
        Row::time(
            "load-forms.6.1.compressed.copy",
            "6.1 compressed: copy",
            COPY,
        ),
        Row::time(
            "load-forms.6.1.compressed.entry",
            "6.1 compressed: entry",
            START,
        ),
        Row::time(
            "load-forms.6.1.compressed.init",
            "6.1 compressed: init",
            START,
        )
        .drawn(),
        Row::time(
            "load-forms.6.1.decompressed.copy",
            "6.1 decompressed: copy",
            COPY,
        )
        .beside("load-forms.6.1.compressed.copy"),
        Row::time(
            "load-forms.6.1.decompressed.entry",
            "6.1 decompressed: entry",
            START,
        )
        .beside("load-forms.6.1.compressed.entry"),
        Row::time(
            "load-forms.6.1.decompressed.init",
            "6.1 decompressed: init",
            START,
        )
        .beside("load-forms.6.1.compressed.init")
        .drawn(),
        Row::time(
            "load-forms.6.12.compressed.copy",
            "6.12 compressed: copy",
            COPY,
        ),
        Row::time(
            "load-forms.6.12.compressed.entry",
            "6.12 compressed: entry",
            START,
        ),
        Row::time(
            "load-forms.6.12.compressed.init",
            "6.12 compressed: init",
            START,
        )
        .drawn(),
        Row::time(
            "load-forms.6.12.decompressed.copy",
            "6.12 decompressed: copy",
            COPY,
        )
        .beside("load-forms.6.12.compressed.copy"),
        Row::time(
            "load-forms.6.12.decompressed.entry",
            "6.12 decompressed: entry",
            START,
        )
        .beside("load-forms.6.12.compressed.entry"),
        Row::time(
            "load-forms.6.12.decompressed.init",
            "6.12 decompressed: init",
            START,
        )
        .beside("load-forms.6.12.compressed.init")
        .drawn(),
    ],
};

fn inside(inside: &Inside) -> Result<(), Finding> {
    for kernel in KERNELS {
        for form in FORMS {
            inside.add_image(&image_name(kernel, form), kernel, form)?;
        }
    }
    inside
        .command
        .run(&[&["machine", "reserve"], &SIZE[..]].concat())?;
    for _ in 0..inside.count {
        for kernel in KERNELS {
            for form in FORMS {
                copy(inside, kernel, form)?;
                start(inside, kernel, form)?;
            }
        }
    }
    Ok(())
}

fn image_name(kernel: &str, form: &str) -> String {
    format!("{form}-{kernel}")
}

/// Copies a kernel's segments into new memory of a node.
fn copy(inside: &Inside, kernel: &str, form: &str) -> Result<(), Finding> {
    let image = image::open(&inside.driver, &image_name(kernel, form).parse::<Name>()?)?;
    let description = &image.description;
    let node = allocate(inside)?;
    let began = Instant::now();
    for (segment, &from) in description
        .loadable
        .segments
        .iter()
        .zip(&description.layout.segments)
    {
        node.copy_from(&image.memory, from, segment.load_offset, segment.size)?;
    }
    inside.record(&format!("load-forms.{kernel}.{form}.copy"), began.elapsed())
}

fn allocate(inside: &Inside) -> Result<Memory, Finding> {
    let memory = inside.driver.create_memory()?;
    memory.grow(&abi::Request {
        size: NODE_BYTES,
        min_phys: 0,
        max_phys: 0,
        chunk_max: 0,
        numa_node: abi::NUMA_ANY,
        flags: 0,
    })?;
    Ok(memory)
}

fn start(inside: &Inside, kernel: &str, form: &str) -> Result<(), Finding> {
    let image = image_name(kernel, form);
    let words = [&["--image", &image], &SIZE[..]].concat();
    let start = inside.command.start(NODE, &words)?;
    let ready = wait_until_ready(&inside.driver, &start.name)?;
    let id = |what| format!("load-forms.{kernel}.{form}.{what}");
    inside.record(&id("entry"), start.timing.total())?;
    inside.record(&id("init"), ready - start.enter)?;
    inside.command.run(&["rm", "--force", NODE]).map(drop)
}
