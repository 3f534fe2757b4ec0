//! What is kept of a kernel: what was found, what its processors do, and the end of its log.

use crate::finding::Finding;
use crate::target::{Kernel, Place};
use crate::task::Task;
use kimage::running::{RunningError, THREAD_SIZE};
use std::fmt::Write;

/// First words of what a watcher keeps, by which it is known among what else the kernel keeps.
const KEPT_BY_WATCHER: &str = "insula watch:";
/// Most addresses of code that are shown of a stack.
const ADDRESSES_MAX: usize = 32;

/// The report; `log` is cut off at its start, so that all has `size_max` bytes at most.
pub(super) fn report(
    kernel: &Kernel<'_>,
    findings: &[Finding],
    log: &[String],
    size_max: usize,
) -> String {
    let mut text = String::new();
    for finding in findings {
        text.push_str(&format!("{KEPT_BY_WATCHER} {finding}\n"));
    }
    text.push_str(&processors(kernel));
    let mut left = size_max.saturating_sub(text.len());
    let last = log.iter().rev().take_while(|line| {
        let rest = left.checked_sub(line.len() + 1);
        left = rest.unwrap_or(0);
        rest.is_some()
    });
    let last: Vec<_> = last.collect();
    for line in last.into_iter().rev() {
        text.push_str(line);
        text.push('\n');
    }
    text
}

/// What each processor executes. What cannot be read is left out: the kernel may be damaged.
fn processors(kernel: &Kernel<'_>) -> String {
    let mut text = String::new();
    let processors = kernel.processors().unwrap_or_default();
    for processor in processors.iter().filter(|one| one.online) {
        let queue = kernel.per_cpu(processor, "runqueues", "rq");
        let current = queue.and_then(|queue| queue.follow("curr"));
        let Ok(Some(current)) = current else {
            continue;
        };
        let task = Task::of(current).map_or_else(|error| error.to_string(), |task| task.subject());
        // Writing to memory does not fail.
        let _ = writeln!(text, "CPU {}: {task}", processor.number);
        for place in code_on_stack(&current).unwrap_or_default() {
            let _ = writeln!(text, " ? {place}");
        }
    }
    text
}

/// Places of the kernel's code that are named by the stack of a task, the innermost first. As in the
/// kernel's own traces, what is marked by `?` may be left from earlier calls.
fn code_on_stack(task: &Place<'_, '_>) -> Result<Vec<String>, RunningError> {
    let kernel = task.kernel();
    let mut bytes = vec![0; THREAD_SIZE as usize];
    kernel.read(task.number("stack")?, &mut bytes)?;
    let words = bytes
        .as_chunks()
        .0
        .iter()
        .map(|word| u64::from_le_bytes(*word));
    let code = kernel.image();
    let places = words
        .filter(|word| code.contains(word))
        .filter_map(|word| kernel.describe_code(word));
    let mut places: Vec<_> = places.collect();
    places.dedup();
    // The outermost calls are certain; of the others those next to them.
    places.drain(..places.len().saturating_sub(ADDRESSES_MAX));
    Ok(places)
}
