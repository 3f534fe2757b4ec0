//! Mint's table 3: the load, step by step, from disk and from memory.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use insula_abi as abi;
use insula_boot::{Layout, NodeDescription};
use insula_driver::name::Name;
use insula_driver::{Mapping, Memory};
use insula_image::{self as image, AddRequest, Files, KernelFile, Payload, ResidentLayout};
use kimage::{Loadable, Segment};
use testbed::base::{Finding, Shape};
use testbed::host::root::Root;

use super::{Benchmark, Row, Unit};
use crate::inside::{Inside, drop_caches, read_rate};

const KERNEL: &str = "6.12";
const IMAGE: &str = "resident";
/// Memory of the node whose load is measured.
const NODE_BYTES: u64 = 256 << 20;
/// Memory below 1 MiB, as much as `insula run` takes.
const LOW_BYTES: u64 = 0x9000;

const STEPS: &str = "the steps of `insula run`, by the library";

pub(super) const BENCHMARK: Benchmark = Benchmark {
    name: "mint-load",
    title: "Load: Mint's table 3, row by row",
    how: "The steps of `insula image add` and `insula run` between the decision to start a node \
          and a node's memory that is ready to be started, each timed by itself; the library's \
          own functions are called, on memory from the pool. *Cold* is a start from files after \
          `echo 3 > /proc/sys/vm/drop_caches`; *first* makes the image resident, also with cold \
          caches, and starts from it; *later* starts from the resident image. The kernel is the \
          stock 6.12 bzImage, the initrd the test nodes' (2 MB). What Mint calls segments and map \
          is here the node's layout: memory map, ACPI tables, page tables, command line, made and \
          written. *Other* is the total minus the named steps; in the first start that is above \
          all reading from the kernel's own symbols how its log can be read from outside, which \
          unpacks the whole kernel, and a digest of the files: a later start needs neither. The \
          cold load also includes writing the kernel to node memory, which Mint does when it \
          executes. Mint's figures are of an i7-4770 with a real disk. The emulated disk is a \
          file in the host's memory, and copying is about five times slower in emulation: both \
          make the later load's share larger than it would be on hardware.",
    machine: Shape::USUAL,
    root: Root::Test,
    rounds: 3,
    inside,
    outside: None,
    counted: None,
    series: &[],
    rows: &[
        Row::time(
            "mint-load.cold.bzimage-from-disk",
            "cold: bzImage from disk",
            STEPS,
        )
        .mint(83.02),
        Row::time(
            "mint-load.cold.initrd-from-disk",
            "cold: initrd from disk",
            STEPS,
        )
        .mint(29.50),
        Row::time(
            "mint-load.cold.segments-and-map",
            "cold: segments and map",
            STEPS,
        )
        .mint(33.11),
        Row::time(
            "mint-load.cold.bzimage-into-node",
            "cold: bzImage into node memory",
            STEPS,
        ),
        Row::time("mint-load.cold.other", "cold: other", STEPS).mint(0.51),
        Row::time("mint-load.cold.all", "cold: load, all", STEPS)
            .mint(146.14)
            .drawn(),
        Row::time(
            "mint-load.first.bzimage-from-disk",
            "first: bzImage from disk",
            STEPS,
        )
        .mint(83.0),
        Row::time(
            "mint-load.first.bzimage-into-region",
            "first: bzImage into resident region",
            STEPS,
        )
        .mint(0.60),
        Row::time(
            "mint-load.first.initrd-from-disk",
            "first: initrd from disk",
            STEPS,
        )
        .mint(28.90),
        Row::time(
            "mint-load.first.initrd-into-region",
            "first: initrd into resident region",
            STEPS,
        )
        .mint(0.16),
        Row::time(
            "mint-load.first.segments-and-map",
            "first: segments and map",
            STEPS,
        )
        .mint(33.05),
        Row::time(
            "mint-load.first.other",
            "first: other (symbols, digest)",
            STEPS,
        )
        .mint(0.52),
        Row::time("mint-load.first.all", "first: load, all", STEPS)
            .mint(146.23)
            .drawn(),
        Row::time(
            "mint-load.later.bzimage-from-region",
            "later: bzImage from resident region",
            STEPS,
        )
        .mint(1.45),
        Row::time(
            "mint-load.later.initrd-from-region",
            "later: initrd from resident region",
            STEPS,
        )
        .mint(0.60),
        Row::time(
            "mint-load.later.segments-and-map",
            "later: segments and map",
            STEPS,
        )
        .mint(33.10),
        Row::time("mint-load.later.other", "later: other", STEPS).mint(0.40),
        Row::time("mint-load.later.all", "later: load, all", STEPS)
            .mint(35.55)
            .drawn(),
        Row::share(
            "mint-load.share.later-of-cold",
            "load: later, share of cold",
            0.24,
            0.05,
        ),
        Row::time(
            "mint-load.disk",
            "the emulated disk, read with cold caches",
            "dd of the disk",
        )
        .unit(Unit::MegabytesPerSecond),
    ],
};

fn inside(inside: &Inside) -> Result<(), Finding> {
    inside
        .command
        .run(&["machine", "reserve", "--memory", "320M"])?;
    let load = Load {
        inside,
        kernel: inside.kernel(KERNEL)?,
    };
    for _ in 0..inside.count {
        inside.record("mint-load.disk", read_rate(&load.kernel)?)?;
        let cold = load.cold()?;
        load.first()?;
        let later = load.later()?;
        let share = later.as_secs_f64() / cold.as_secs_f64();
        inside.record("mint-load.share.later-of-cold", share)?;
        let name: Name = IMAGE.parse()?;
        image::remove(&inside.driver, &name)?;
    }
    Ok(())
}

/// Records each step of a load and sums up their times; the rest of the total is "other".
struct Steps<'a> {
    inside: &'a Inside,
    column: &'static str,
    began: Instant,
    named: Duration,
}

impl<'a> Steps<'a> {
    fn begin(inside: &'a Inside, column: &'static str) -> Self {
        Self {
            inside,
            column,
            began: Instant::now(),
            named: Duration::ZERO,
        }
    }

    fn step<T>(
        &mut self,
        name: &str,
        work: impl FnOnce() -> Result<T, Finding>,
    ) -> Result<T, Finding> {
        let began = Instant::now();
        let result = work()?;
        let took = began.elapsed();
        self.named += took;
        self.record(name, took)?;
        Ok(result)
    }

    fn record(&self, name: &str, took: Duration) -> Result<(), Finding> {
        let id = format!("mint-load.{}.{name}", self.column);
        self.inside.record(&id, took)
    }

    fn end(self) -> Result<Duration, Finding> {
        let all = self.began.elapsed();
        self.end_at(all)
    }

    fn end_at(self, all: Duration) -> Result<Duration, Finding> {
        self.record("other", all.saturating_sub(self.named))?;
        self.record("all", all)?;
        Ok(all)
    }
}

struct Load<'a> {
    inside: &'a Inside,
    kernel: PathBuf,
}

impl Load<'_> {
    /// Loads from files, with empty caches.
    fn cold(&self) -> Result<Duration, Finding> {
        let node = self.allocate(NODE_BYTES, true)?;
        let mut mapping = node.map()?;
        drop_caches()?;
        let mut steps = Steps::begin(self.inside, "cold");
        let initrd = fs::File::open(self.inside.initrd())?;
        let initrd_size = initrd.metadata()?.len();
        let kernel = steps.step("bzimage-from-disk", || Ok(KernelFile::read(&self.kernel)?))?;
        let (bytes, loadable) = kernel.payload(Payload::Compressed)?;
        let layout = steps.step("segments-and-map", || {
            self.lay_out(&node, &mut mapping, &loadable, initrd_size)
        })?;
        steps.step("bzimage-into-node", || {
            for segment in &loadable.segments {
                let to = layout.kernel + segment.load_offset;
                mapping.write_at(to, segment_bytes(&bytes, segment)?)?;
            }
            Ok(())
        })?;
        steps.step("initrd-from-disk", || {
            Ok(mapping.read_file_at(layout.initrd, &initrd, initrd_size)?)
        })?;
        steps.end()
    }

    /// Makes the image resident by the library's one function, then by its single steps.
    fn first(&self) -> Result<(), Finding> {
        drop_caches()?;
        let began = Instant::now();
        let request = AddRequest {
            project: None,
            name: IMAGE.parse()?,
            files: Files {
                kernel: self.kernel.clone(),
                initrd: Some(self.inside.initrd().to_owned()),
            },
            append: String::new(),
            payload: Payload::Compressed,
        };
        image::add(&self.inside.driver, &request)?;
        let added = began.elapsed();

        drop_caches()?;
        let mut steps = Steps::begin(self.inside, "first");
        let kernel = steps.step("bzimage-from-disk", || Ok(KernelFile::read(&self.kernel)?))?;
        let initrd = steps.step("initrd-from-disk", || read(self.inside.initrd()))?;
        let loadable = kimage::inspect(&kernel.bytes)?;
        let region = ResidentLayout::plan(&loadable, initrd.len() as u64);
        let memory = self.allocate(region.size.next_multiple_of(abi::GRANULE), false)?;
        let mut mapping = memory.map()?;
        steps.step("bzimage-into-region", || {
            for (segment, &to) in loadable.segments.iter().zip(&region.segments) {
                mapping.write(to, segment_bytes(&kernel.bytes, segment)?)?;
            }
            Ok(())
        })?;
        steps.step("initrd-into-region", || {
            Ok(mapping.write(region.initrd, &initrd)?)
        })?;
        drop((mapping, memory));
        let node = self.allocate(NODE_BYTES, true)?;
        let mut mapping = node.map()?;
        let began = Instant::now();
        steps.step("segments-and-map", || {
            self.lay_out(&node, &mut mapping, &loadable, initrd.len() as u64)
        })?;
        steps.end_at(added + began.elapsed()).map(drop)
    }

    /// Loads from the resident image.
    fn later(&self) -> Result<Duration, Finding> {
        let node = self.allocate(NODE_BYTES, true)?;
        let mut mapping = node.map()?;
        let mut steps = Steps::begin(self.inside, "later");
        let image = image::open(&self.inside.driver, &IMAGE.parse::<Name>()?)?;
        let region = &image.memory;
        let (loadable, placed) = (&image.description.loadable, &image.description.layout);
        let initrd_size = image.description.initrd_size;
        let layout = steps.step("segments-and-map", || {
            self.lay_out(&node, &mut mapping, loadable, initrd_size)
        })?;
        steps.step("bzimage-from-region", || {
            for (segment, &from) in loadable.segments.iter().zip(&placed.segments) {
                let to = mapping.offset_of(layout.kernel + segment.load_offset, segment.size)?;
                node.copy_from(region, from, to, segment.size)?;
            }
            Ok(())
        })?;
        let to = mapping.offset_of(layout.initrd, initrd_size)?;
        steps.step("initrd-from-region", || {
            Ok(node.copy_from(region, placed.initrd, to, initrd_size)?)
        })?;
        steps.end()
    }

    /// Memory from the pool; with `for_node`, also below 1 MiB.
    fn allocate(&self, size: u64, for_node: bool) -> Result<Memory, Finding> {
        let request = |size, min_phys, max_phys| abi::Request {
            size,
            min_phys,
            max_phys,
            chunk_max: 0,
            numa_node: abi::NUMA_ANY,
            flags: 0,
        };
        let memory = self.inside.driver.create_memory()?;
        if for_node {
            memory.grow(&request(LOW_BYTES, 64 << 10, 640 << 10))?;
        }
        memory.grow(&request(size, 0, 0))?;
        Ok(memory)
    }

    fn lay_out(
        &self,
        node: &Memory,
        mapping: &mut Mapping,
        kernel: &Loadable,
        initrd_size: u64,
    ) -> Result<Layout, Finding> {
        let (machine, cpus) = self.inside.driver.machine()?;
        let last = cpus.last().map_or(0, |cpu| cpu.apic_id);
        let chunks: Vec<_> = node
            .chunks()?
            .iter()
            .map(|chunk| insula_boot::Chunk {
                start: chunk.start,
                size: chunk.size,
            })
            .collect();
        let layout = insula_boot::lay_out(&NodeDescription {
            kernel,
            initrd_size,
            command_line: "",
            cpus: &[last],
            spare_cpus: &[],
            chunks: &chunks,
            buses: &[],
            trampoline: machine.trampoline,
            tsc_khz: machine.tsc_khz,
            channels_size: 0,
            persistent: &[],
            is_confined: false,
            random_seed: &[],
        })?;
        for piece in &layout.pieces {
            mapping.write_at(piece.address, &piece.bytes)?;
        }
        Ok(layout)
    }
}

fn segment_bytes<'a>(file: &'a [u8], segment: &Segment) -> Result<&'a [u8], Finding> {
    let start = usize::try_from(segment.file_offset)?;
    let size = usize::try_from(segment.size)?;
    let bytes = file.get(start..).and_then(|rest| rest.get(..size));
    bytes.ok_or_else(|| Finding::new("the kernel's file is shorter than its segments"))
}

fn read(path: &Path) -> Result<Vec<u8>, Finding> {
    Ok(fs::read(path)?)
}
