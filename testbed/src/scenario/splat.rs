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
    "list_add corruption",
    "list_del corruption",
    "nobody cared",
    "I/O Error",
    "timed out",
];

/// What a scenario writes to the kernel log before it makes the kernel complain on
/// purpose. What comes after is not held against it.
pub const WANTED: &str = "testbed: what follows is wanted";

/// The first line of a kernel log that tells of something wrong.
pub fn find(log: &str) -> Option<&str> {
    log.lines()
        .take_while(|line| !line.contains(WANTED))
        .find(|line| MARKS.iter().any(|mark| line.contains(mark)))
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
    fn usual_log_is_clean() {
        assert_eq!(
            find("[ 0.0] Linux version 6.1\n[ 0.5] ACPI: bus type PCI registered\n"),
            None
        );
    }
}
