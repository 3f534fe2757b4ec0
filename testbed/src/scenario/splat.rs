//! Complaints in a kernel log.

/// What the kernel writes when something in it went wrong.
const MARKS: &[&str] = &[
    "BUG:",
    "WARNING:",
    "Oops:",
    "INFO: task ",
    "Call Trace:",
    "Kernel panic",
    "general protection fault",
    "unable to handle",
    "kernel BUG at",
    "detected stall",
    "soft lockup",
    "Bad page state",
    "INFO: trying to register non-static key",
    "list_add corruption",
    "list_del corruption",
    "nobody cared",
    "I/O Error",
    "timed out",
];

/// What a scenario writes to the kernel log before it makes the kernel complain on
/// purpose. What comes after is not held against it.
pub const WANTED: &str = "testbed: what follows is wanted";

/// The first line of what the kernel tells of a data race.
const RACE: &str = "BUG: KCSAN:";
/// The line before and after that.
const RULE: &str = "==========";
/// What stands behind each function of ours in a trace.
const OURS: &str = "[insula";

/// The first line of a kernel log that tells of something wrong. The kernel's own data races do not
/// count: it has many that it knows of, and tells of them like of ours.
pub fn find(log: &str) -> Option<&str> {
    let mut lines = log.lines().take_while(|line| !line.contains(WANTED));
    while let Some(line) = lines.next() {
        if line.contains(RACE) {
            let mut told = lines.by_ref().take_while(|line| !line.contains(RULE));
            if told.any(|line| line.contains(OURS)) {
                return Some(line);
            }
        } else if MARKS.iter().any(|mark| line.contains(mark)) {
            return Some(line);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complaint_is_found() {
        let log = "[ 1.0] all is well\n[ 2.0] BUG: scheduling while atomic\n[ 2.1] Call Trace:\n";
        assert_eq!(find(log), Some("[ 2.0] BUG: scheduling while atomic"));
    }

    #[test]
    fn wanted_complaint_is_not_found() {
        let wanted = format!("[ 1.0] all is well\n[ 2.0] {WANTED}\n[ 2.1] Kernel panic\n");
        assert_eq!(find(&wanted), None);
        let earlier = format!("[ 1.0] Oops: 0002\n[ 2.0] {WANTED}\n");
        assert_eq!(find(&earlier), Some("[ 1.0] Oops: 0002"));
    }

    #[test]
    fn data_races_count_if_we_take_part() {
        let race = |function: &str| {
            format!(
                "[ 1.0] {RULE}\n[ 1.0] BUG: KCSAN: data-race in a / b\n[ 1.0] write to 0x1 by task 1:\n\
                 [ 1.0]  {function}\n[ 1.0]  Call Trace:\n[ 1.0] {RULE}\n[ 1.1] all is well\n"
            )
        };
        let ours = "[ 1.0] BUG: KCSAN: data-race in a / b";
        let (kernel, module) = (race("tick+0x1/0x9"), race("look+0x1/0x9 [insula]"));
        assert_eq!(find(&kernel), None);
        assert_eq!(find(&module), Some(ours));
        let after = "[ 2.0] WARNING: possible circular locking dependency detected";
        assert_eq!(find(&format!("{kernel}{after}\n")), Some(after));
    }

    #[test]
    fn usual_log_is_clean() {
        assert_eq!(
            find("[ 0.0] Linux version 6.1\n[ 0.5] ACPI: bus type PCI registered\n"),
            None
        );
    }
}
