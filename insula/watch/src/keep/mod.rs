//! Keeping what is known of the base where a warm reset leaves it, and the reset.
//!
//! It is memory that the base was told not to use, in the format of Linux' ramoops: so the next kernel
//! shows it as a file of pstore, with or without this project.

mod ramoops;
mod report;
mod reset;

pub use reset::MachineReset;

use crate::finding::Finding;
use crate::target::Kernel;
use crate::watched::Watched;
use insula_base::error::{Error, Source};
use insula_base::root::Root;
use insula_driver::{Driver, DriverError, OutOfRange, ReservedMapping};
use ramoops::{Ramoops, RamoopsError, SIGNATURE, Zone};
use std::ops::Range;
use std::time::SystemTime;

/// Size of a page, in bytes.
const PAGE: u64 = 4096;
/// Most records of the log that are looked at.
const LOG_RECORDS: usize = 4096;
const HINT: &str = "reserve memory for it, as by `memmap=1M$0x6000000` on the kernel's command line, and load \
                    ramoops with `mem_address=0x6000000 mem_size=0x100000 record_size=0x20000`";

/// Memory that outlives the base.
#[derive(Debug)]
pub struct BaseRecord {
    memory: ReservedMapping,
    /// Physical address at which that begins.
    start: u64,
    zone: Zone,
}

impl BaseRecord {
    /// Opens the memory of the base's ramoops. On a node it can be written from now on without a call of the
    /// base.
    ///
    /// # Errors
    /// When there is none, or it cannot be written.
    pub fn open(root: &Root, driver: &Driver) -> Result<Self, Error> {
        let failed = |error: Source| {
            let error = Error::new("nothing of the base can be kept over a reset").because(error);
            error.untouched().hint(HINT)
        };
        let ramoops = Ramoops::of_base(root).map_err(|error| failed(error.into()))?;
        let start = ramoops.memory.start / PAGE * PAGE;
        let range = start..ramoops.memory.end.next_multiple_of(PAGE);
        let opened = driver.base_memory().map_err(DriverError::from);
        let mapped = opened.and_then(|opened| opened.map_reserved(&range));
        let memory = mapped.map_err(|error| failed(error.into()))?;
        let is_one = |zone: &Range<u64>| {
            let mut signature = [0; 4];
            let read = memory.read(zone.start - start, &mut signature);
            read.is_ok() && u32::from_le_bytes(signature) == SIGNATURE
        };
        let zone = ramoops.zones.into_iter().find(is_one);
        let zone = zone.ok_or_else(|| failed(RamoopsError::Unknown.into()))?;
        let mut record = Self {
            memory,
            start,
            zone: Zone(zone),
        };
        record.touch().map_err(|error| failed(error.into()))?;
        Ok(record)
    }

    /// Keeps what was found, what the base's processors do, and the end of its log: in place of what was
    /// kept before.
    ///
    /// # Errors
    /// When the log cannot be read; then the rest is kept.
    pub fn write(
        &mut self,
        watched: &Watched,
        kernel: &Kernel<'_>,
        findings: &[Finding],
    ) -> Result<(), Error> {
        let now = SystemTime::now();
        let (log, error) = match watched.last_of_log(LOG_RECORDS) {
            Ok(log) => (log, None),
            Err(error) => (Vec::new(), Some(error)),
        };
        let text = report::report(kernel, findings, &log, self.zone.text_max(now));
        let record = self.zone.record(now, &text);
        let kept = self.memory.write(self.offset(), &record);
        kept.map_err(|error| Error::new("nothing of the base was kept").because(error))?;
        error.map_or(Ok(()), Err)
    }

    /// Writes what is there to each page of the zone: so that none has to be mapped later.
    fn touch(&mut self) -> Result<(), OutOfRange> {
        let size = self.zone.0.end - self.zone.0.start;
        let last = size - 1;
        for at in (0..size).step_by(PAGE as usize).chain([last]) {
            let offset = self.offset() + at;
            let mut byte = [0];
            self.memory.read(offset, &mut byte)?;
            self.memory.write(offset, &byte)?;
        }
        Ok(())
    }

    /// Offset of the zone in what is mapped.
    fn offset(&self) -> u64 {
        self.zone.0.start - self.start
    }
}
