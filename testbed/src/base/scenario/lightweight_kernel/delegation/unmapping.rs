//! Pages that a program unmaps while the base reads a disk into them.

use std::fs::{self, File};
use std::io::Write;
use std::mem::offset_of;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use insula_abi::lwk::{INVALIDATE_NO_QUIESCE, PAGE_SIZE, Process, request};
use nix::errno::Errno;
use nix::libc;

use super::fake_lwk::FakeLwk;
use super::fake_program::{DEMAND, Program};
use super::{AWAKE, DISK_FILE, MIB, end, exec};
use crate::base::Finding;
use crate::base::support::insula_command::{assert_equal, wait_for};

/// Pages are unmapped from the program while the base reads a disk into them. After the base has
/// invalidated them, they must not change any more.
pub(super) fn play(fake: &FakeLwk, rounds: u64) -> Result<(), Finding> {
    let program = fake.exec(&mut exec(AWAKE))?;
    let slot = program.first_slot()?;
    let range = DEMAND.start + MIB..DEMAND.start + 2 * MIB;
    let nothing_there = DEMAND.start + 8 * MIB;
    assert_equal(
        "mapping of a page that nobody touched",
        &program.may_be_mapped(nothing_there)?,
        &false,
    )?;
    File::create(DISK_FILE)?.write_all(&vec![0xa5; MIB as usize])?;
    program.write(DEMAND.start, format!("{DISK_FILE}\0").as_bytes())?;
    let flags = (libc::O_RDONLY | libc::O_DIRECT) as u64;
    let file = program
        .call(slot, libc::SYS_open as u64, &[DEMAND.start, flags, 0])?
        .result;
    Finding::unless(file >= 0, || {
        format!("{DISK_FILE} cannot be read directly: {file}")
    })?;
    let reader = program.call(slot, request::THREAD, &[])?.value;
    let over = AtomicBool::new(false);
    let read = || {
        let arguments = [file.cast_unsigned(), range.start, MIB, 0];
        let mut whole = 0_u64;
        while !over.load(Ordering::Relaxed) {
            let read = program
                .call(reader, libc::SYS_pread64 as u64, &arguments)?
                .result;
            let efault = -(Errno::EFAULT as i64);
            Finding::unless(read > 0 || read == efault, || {
                format!("read answered {read}")
            })?;
            whole += u64::from(read == MIB.cast_signed());
        }
        Ok::<_, Finding>(whole)
    };
    std::thread::scope(|scope| {
        let reading = scope.spawn(read);
        let reached = || Ok(program.may_be_mapped(range.start)?.then_some(()));
        let unmapped = wait_for("a read", reached).and_then(|()| {
            (1..=rounds).try_for_each(|number| unmap_once(fake, &program, slot, &range, number))
        });
        over.store(true, Ordering::Relaxed);
        let whole = reading.join().map_err(|_| Finding::new("reading failed"))?;
        unmapped?;
        whole.map(|whole| println!("{whole} whole reads beside {rounds} times unmapping"))
    })?;
    let invalid = [
        (range.start + 1, MIB),
        (range.start, 0),
        (1 << 47, PAGE_SIZE),
        (0, PAGE_SIZE),
    ];
    for (start, size) in invalid {
        let refused = program
            .call(slot, request::INVALIDATE, &[start, size, 1, 0])?
            .result;
        assert_equal(
            "an invalidation of an invalid range",
            &refused,
            &-(Errno::EINVAL as i64),
        )?;
    }
    fs::remove_file(DISK_FILE)?;
    end(program, slot, 0, |status| status.success())
}

fn unmap_once(
    fake: &FakeLwk,
    program: &Program,
    slot: u64,
    range: &std::ops::Range<u64>,
    number: u64,
) -> Result<(), Finding> {
    const MARK: u64 = 0x1234_5678_9abc_def0;
    let frames = program.unmap(range.clone())?;
    let began = Instant::now();
    let invalidate = |flags| {
        let arguments = [range.start, range.end - range.start, number, flags];
        program
            .call(slot, request::INVALIDATE, &arguments)
            .map(|outcome| outcome.result)
    };
    assert_equal(
        "an invalidation without quiescing",
        &invalidate(INVALIDATE_NO_QUIESCE)?,
        &0,
    )?;
    wait_for("the base to unpin all pages", || {
        assert_equal("an invalidation", &invalidate(0)?, &0)?;
        let pinned = program.get(offset_of!(Process, pinned_count))?;
        Ok((pinned == 0).then_some(()))
    })?;
    assert_equal(
        "the sequence number of the invalidation",
        &program.get(offset_of!(Process, invalidated))?,
        &number,
    )?;
    frames
        .iter()
        .try_for_each(|&frame| fake.fill(frame, MARK))?;
    std::thread::sleep(Duration::from_millis(5));
    for &frame in &frames {
        let untouched = fake.is_filled(frame, MARK)?;
        Finding::unless(untouched, || {
            format!(
                "frame {frame:#x} was written to {:?} after its invalidation",
                began.elapsed()
            )
        })?;
    }
    fake.free_frames(frames);
    Ok(())
}
