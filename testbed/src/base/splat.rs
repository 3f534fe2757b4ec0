//! Errors in a kernel log.

/// Texts of the kernel's error reports.
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

/// Marker that a scenario writes to the kernel log before it provokes an error of the kernel.
/// Errors after it are ignored.
pub const EXPECTED: &str = "testbed: errors from here on are expected";

/// First line of KCSAN's report of a data race.
const RACE: &str = "BUG: KCSAN:";
/// Line before and after a report.
const RULE: &str = "==========";
/// Text behind each function of ours in a trace.
const OURS: &str = "[insula";

/// First line of lockdep's report of a circle, and what ends each report with a trace.
const CIRCLE: &str = "possible circular locking dependency detected";
const TRACE_END: &str = "</TASK>";
/// Where Linux' power-off closes a circle of its own locks: it has frozen NVMe drives by then, and
/// taking memory offline has put the locks of hotplug above all that reading a file needs.
const OF_POWER_OFF: &str = "at: cpu_hotplug_disable+";

/// First line of a kernel log that reports an error. Data races of the kernel itself do not count:
/// it has many known ones, which are reported in the same way; nor does what its power-off reports.
pub fn find(log: &str) -> Option<&str> {
    let mut lines = log.lines().take_while(|line| !line.contains(EXPECTED));
    while let Some(line) = lines.next() {
        if line.contains(RACE) {
            let mut report = lines.by_ref().take_while(|line| !line.contains(RULE));
            if report.any(|line| line.contains(OURS)) {
                return Some(line);
            }
        } else if line.contains(CIRCLE) {
            let mut report = lines.by_ref().take_while(|line| !line.contains(TRACE_END));
            let acquired = report.by_ref().find(|line| line.contains(" at: "));
            if acquired.is_none_or(|acquired| !acquired.contains(OF_POWER_OFF)) {
                return Some(line);
            }
            report.for_each(drop);
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
    fn error_is_found() {
        let log = "[ 1.0] all is well\n[ 2.0] BUG: scheduling while atomic\n[ 2.1] Call Trace:\n";
        assert_eq!(find(log), Some("[ 2.0] BUG: scheduling while atomic"));
    }

    #[test]
    fn expected_error_is_not_found() {
        let wanted = format!("[ 1.0] all is well\n[ 2.0] {EXPECTED}\n[ 2.1] Kernel panic\n");
        assert_eq!(find(&wanted), None);
        let earlier = format!("[ 1.0] Oops: 0002\n[ 2.0] {EXPECTED}\n");
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
        let (kernel, module) = (race("tick+0x1/0x9"), race("poll+0x1/0x9 [insula]"));
        assert_eq!(find(&kernel), None);
        assert_eq!(find(&module), Some(ours));
        let after = "[ 2.0] WARNING: possible circular locking dependency detected";
        assert_eq!(find(&format!("{kernel}{after}\n")), Some(after));
    }

    #[test]
    fn circles_count_but_for_that_of_power_off() {
        let circle = |function: &str| {
            format!(
                "[ 1.0] WARNING: {CIRCLE}\n[ 1.0] init/1 is trying to acquire lock:\n\
                 [ 1.0] ffff (lock){{+.+.}}-{{3:3}}, at: {function}\n[ 1.0] but holds lock:\n\
                 [ 1.0] ffff (other){{+.+.}}-{{3:3}}, at: cpu_hotplug_disable+0x1/0x2\n\
                 [ 1.0] Call Trace:\n[ 1.0]  </TASK>\n"
            )
        };
        let power_off = circle("cpu_hotplug_disable+0x1/0x2");
        assert_eq!(find(&power_off), None);
        let other = circle("base_fault+0x1/0x2");
        let found = format!("[ 1.0] WARNING: {CIRCLE}");
        assert_eq!(find(&other), Some(found.as_str()));
        let later = format!("{power_off}[ 2.0] BUG: Bad page state\n");
        assert_eq!(find(&later), Some("[ 2.0] BUG: Bad page state"));
    }

    #[test]
    fn usual_log_is_clean() {
        assert_eq!(
            find("[ 0.0] Linux version 6.1\n[ 0.5] ACPI: bus type PCI registered\n"),
            None
        );
    }
}
