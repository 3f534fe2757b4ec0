//! A node's kernel command line: the options of [`crate::options`], then the user's.
//!
//! Words and names are parsed as the kernel does (`next_arg()` in lib/cmdline.c, `parameqn()` in
//! kernel/params.c): words end at white space outside double quotes, `-` and `_` in names are the
//! same, and everything after `--` is for init.

use crate::options::{
    CONFIG_PORTS, CPUS, Condition, KernelOption, LISTED, OPTIONS, OTHER_PORTS, PHANTOM, REFUSED,
    Rule, TSC_KHZ,
};
use crate::processors::Processors;
use thiserror::Error;

/// Why a command line was refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CommandLineError {
    /// It has a character that ends it or that the kernel may take for a space.
    #[error(
        "the kernel command line has {character:?} at byte {offset}, but only printable ASCII and \
         white space are allowed; remove it"
    )]
    InvalidCharacter {
        /// The character.
        character: char,
        /// Its offset in the user's part, in bytes.
        offset: usize,
    },
    /// It sets an option that nodes must not have.
    #[error("the kernel option \"{option}\" cannot be set for a node: it {why}; remove it")]
    Refused {
        /// The word as the user gave it.
        option: String,
        /// Its effect.
        why: &'static str,
    },
    /// It sets an option with a fixed value.
    #[error(
        "the kernel option \"{option}\" cannot be set for a node, which gets {fixed} ({why}); \
         remove it"
    )]
    FixedOption {
        /// The word as the user gave it.
        option: String,
        /// The option that nodes get.
        fixed: String,
        /// Its purpose.
        why: &'static str,
    },
    /// An option that the base handles has an invalid value.
    #[error(
        "the kernel option \"{option}\" is invalid: give a number of seconds, 0 for no restart, or \
         a negative one for an immediate restart"
    )]
    InvalidTimeout {
        /// The word as the user gave it.
        option: String,
    },
    /// It is longer than the kernel accepts.
    #[error(
        "the kernel command line has {size} bytes, {own} of them added for nodes, but the kernel \
         accepts {limit}; shorten it by {}", size - limit
    )]
    TooLong {
        /// Total size in bytes.
        size: usize,
        /// Size of the nodes' options in bytes.
        own: usize,
        /// Maximum size in bytes.
        limit: usize,
    },
}

/// Properties of a node that affect its command line.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Facts<'a> {
    pub(crate) tsc_khz: u32,
    pub(crate) processors: Processors<'a>,
    /// Whether it has devices that do DMA.
    pub(crate) has_devices: bool,
    /// Whether it reaches their configuration space by I/O ports.
    pub(crate) has_config_ports: bool,
    /// Whether a monitor confines it.
    pub(crate) is_confined: bool,
}

/// A command line, and the options that the base handles.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CommandLine {
    pub(crate) text: String,
    /// The user's `panic=`: seconds from a panic to a restart, at once if negative, 0 for none.
    pub(crate) panic_s: i32,
}

/// Combines the nodes' options and the user's to a command line of at most `limit` bytes.
pub(crate) fn compose(
    facts: &Facts,
    user: &str,
    limit: usize,
) -> Result<CommandLine, CommandLineError> {
    check_characters(user)?;
    // Trim first: an open quote would make trailing spaces part of the last word.
    let user = user.trim();
    let words = kernel_words(user);
    check_refused(&words)?;
    let mut text = own_options(facts, &words)?.join(" ");
    let own = text.len();
    let user = without_handled(user, &words);
    if !user.is_empty() {
        text.push(' ');
        text.push_str(&user);
    }
    let size = text.len();
    if size > limit {
        return Err(CommandLineError::TooLong { size, own, limit });
    }
    Ok(CommandLine {
        text,
        panic_s: panic_timeout(&words)?,
    })
}

/// The user's line without the options that the base handles.
fn without_handled(user: &str, words: &[&str]) -> String {
    let mut line = String::new();
    let mut from = 0;
    for word in words.iter().filter(|word| is_handled(word)) {
        // The words are slices of the line.
        let at = word.as_ptr().addr() - user.as_ptr().addr();
        line.push_str(&user[from..at]);
        from = at + word.len();
    }
    line.push_str(&user[from..]);
    line.trim().to_owned()
}

fn is_handled(word: &str) -> bool {
    let mut handled = OPTIONS.iter().filter(|option| option.rule == Rule::Handled);
    handled.any(|option| name(word) == canonical(option.name))
}

/// The last `panic=`, as the kernel takes it.
fn panic_timeout(words: &[&str]) -> Result<i32, CommandLineError> {
    let last = words.iter().rfind(|word| is_handled(word));
    last.map_or(Ok(0), |word| {
        let value = unquoted(word).split_once('=').map(|(_, value)| value);
        let value = value.map(|value| value.trim_end_matches('"').parse());
        value
            .and_then(Result::ok)
            .ok_or_else(|| CommandLineError::InvalidTimeout {
                option: (*word).to_owned(),
            })
    })
}

/// The nodes' options beside the user's words.
fn own_options(facts: &Facts, user: &[&str]) -> Result<Vec<String>, CommandLineError> {
    let mut options = Vec::with_capacity(OPTIONS.len());
    for option in OPTIONS {
        let is_same = |word: &&&str| name(word) == canonical(option.name);
        match (user.iter().find(is_same), option.rule) {
            (Some(word), Rule::Fixed) => {
                return Err(CommandLineError::FixedOption {
                    option: (*word).to_owned(),
                    fixed: render(option, facts),
                    why: option.why,
                });
            }
            (Some(_), Rule::Overridable) => {}
            _ if applies(option, facts, user) => options.push(render(option, facts)),
            _ => {}
        }
    }
    Ok(options)
}

fn check_characters(user: &str) -> Result<(), CommandLineError> {
    let fits = |character: char| matches!(character, ' '..='~' | '\t');
    match user.char_indices().find(|(_, character)| !fits(*character)) {
        Some((offset, character)) => Err(CommandLineError::InvalidCharacter { character, offset }),
        None => Ok(()),
    }
}

fn check_refused(words: &[&str]) -> Result<(), CommandLineError> {
    for word in words {
        if let Some(refused) = REFUSED.iter().find(|refused| name(word) == refused.name) {
            return Err(CommandLineError::Refused {
                option: (*word).to_owned(),
                why: refused.why,
            });
        }
    }
    Ok(())
}

fn applies(option: &KernelOption, facts: &Facts, user: &[&str]) -> bool {
    match option.condition {
        Condition::Always => true,
        Condition::WithSpares => !facts.processors.spare.is_empty(),
        Condition::WithoutDevices => !facts.has_devices,
        Condition::WithoutSerialConsole => !user.iter().any(|word| is_serial_console(word)),
        Condition::Unconfined => !facts.is_confined,
    }
}

/// Whether `word` is a console of the serial driver.
fn is_serial_console(word: &str) -> bool {
    let word = unquoted(word);
    word.starts_with("console=ttyS") || word.starts_with("console=uart")
}

/// The option as text.
fn render(option: &KernelOption, facts: &Facts) -> String {
    if option.value.is_empty() {
        return option.name.to_owned();
    }
    let processors = &facts.processors;
    let listed = processors.own.len() + processors.spare.len();
    let value = match facts.has_config_ports {
        true => option.value.replace(CONFIG_PORTS, OTHER_PORTS),
        false => option.value.to_owned(),
    };
    let value = value
        .replace(TSC_KHZ, &facts.tsc_khz.to_string())
        .replace(PHANTOM, &processors.phantom.to_string())
        .replace(CPUS, &processors.own.len().to_string())
        .replace(LISTED, &listed.to_string());
    format!("{}={value}", option.name)
}

/// The words of `line` for the kernel.
fn kernel_words(line: &str) -> Vec<&str> {
    let mut quoted = false;
    let words = line.split(move |character: char| {
        quoted ^= character == '"';
        !quoted && character.is_ascii_whitespace()
    });
    words
        .filter(|word| !word.is_empty())
        .take_while(|word| *word != "--")
        .collect()
}

/// The canonical name of the option that `word` sets.
fn name(word: &str) -> String {
    let word = unquoted(word);
    canonical(word.split('=').next().unwrap_or(word))
}

/// `word` without a leading quote.
fn unquoted(word: &str) -> &str {
    word.strip_prefix('"').unwrap_or(word)
}

fn canonical(name: &str) -> String {
    name.replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FACTS: Facts = Facts {
        tsc_khz: 2_400_000,
        processors: Processors {
            own: &[1, 2],
            spare: &[],
            phantom: 240,
        },
        has_devices: false,
        has_config_ports: false,
        is_confined: false,
    };

    fn compose_for(user: &str) -> Result<String, CommandLineError> {
        compose(&FACTS, user, 2047).map(|line| line.text)
    }

    fn words(line: &str) -> Vec<&str> {
        line.split(' ').collect()
    }

    #[test]
    fn adds_the_nodes_options() {
        let line = compose_for("").unwrap();
        for needed in [
            "tsc_early_khz=2400000",
            "no_ipi_broadcast=1",
            "disable_cpu_apicid=240",
            "reboot=a",
            "sysctl.kernel.kexec_load_disabled=1",
        ] {
            assert!(words(&line).contains(&needed), "{needed} not in {line}");
        }
        assert!(!line.contains("maxcpus"), "{line}");
        assert!(!line.contains(['<', '>']), "{line}");
    }

    #[test]
    fn spares_stay_offline() {
        let mut facts = FACTS;
        facts.processors.spare = &[3];
        let line = compose(&facts, "", 2047).unwrap().text;
        assert!(words(&line).contains(&"maxcpus=2"), "{line}");
    }

    #[test]
    fn only_confined_nodes_keep_x2apic_mode() {
        let mut facts = FACTS;
        assert!(words(&compose_for("").unwrap()).contains(&"nox2apic"));
        facts.is_confined = true;
        let line = compose(&facts, "", 2047).unwrap().text;
        assert!(!line.contains("x2apic"), "{line}");
    }

    #[test]
    fn devices_may_need_bounce_buffers() {
        let mut facts = FACTS;
        assert!(compose_for("").unwrap().contains("swiotlb=noforce"));
        facts.has_devices = true;
        assert!(!compose(&facts, "", 2047).unwrap().text.contains("swiotlb"));
    }

    #[test]
    fn configuration_ports_are_reserved_unless_they_are_the_nodes() {
        let mut facts = FACTS;
        assert!(
            compose_for("")
                .unwrap()
                .contains("reserve=0xcf8,8,0x3f8,8,")
        );
        facts.has_config_ports = true;
        let line = compose(&facts, "", 2047).unwrap().text;
        assert!(line.contains("reserve=0x3f8,8,0x3e8,8,0x2e8,8"), "{line}");
    }

    #[test]
    fn user_overrides_where_allowed() {
        let line = compose_for("panic_on_warn=1 tsc=unstable  quiet").unwrap();
        assert!(
            line.ends_with(" panic_on_warn=1 tsc=unstable  quiet"),
            "{line}"
        );
        assert!(!words(&line).contains(&"tsc=reliable"), "{line}");
        let line = compose_for("pci=nomsi").unwrap();
        assert!(words(&line).contains(&"pci=noearly"), "{line}");
    }

    #[test]
    fn panic_timeout_is_handled_by_the_base() {
        let cases = [
            ("", 0, ""),
            ("panic=5", 5, ""),
            (
                " quiet panic=3  \"panic=-1\" foo -- panic=9 ",
                -1,
                " quiet    foo -- panic=9",
            ),
            ("a=\"panic=4 x\"", 0, " a=\"panic=4 x\""),
        ];
        let none = compose_for("").unwrap();
        for (user, seconds, left) in cases {
            let line = compose(&FACTS, user, 2047).unwrap();
            assert_eq!(
                (line.panic_s, line.text),
                (seconds, format!("{none}{left}"))
            );
        }
        assert!(words(&none).contains(&"panic=0"), "{none}");
        for user in ["panic", "panic=", "panic=soon"] {
            let error = compose_for(user).unwrap_err();
            assert!(
                matches!(error, CommandLineError::InvalidTimeout { .. }),
                "{error}"
            );
        }
    }

    #[test]
    fn serial_console_enables_the_driver() {
        assert!(compose_for("").unwrap().contains("8250.nr_uarts=0"));
        for user in ["console=ttyS1,115200", "a=b \"console=uart8250,io,0x2f8\""] {
            assert!(!compose_for(user).unwrap().contains("nr_uarts"), "{user}");
        }
    }

    #[test]
    fn refuses_options_that_affect_the_machine() {
        for user in [
            "reboot=t",
            "quiet no-ipi-broadcast=0",
            "\"reserve=0x80,1\"",
            "\"reboot ",
        ] {
            let error = compose_for(user).unwrap_err();
            assert!(
                matches!(error, CommandLineError::FixedOption { .. }),
                "{user}: {error}"
            );
        }
        for user in ["acpi=off", "memmap=1G@4G", "a=\"b c\" acpi_rsdp=0xf0000"] {
            let error = compose_for(user).unwrap_err();
            assert!(
                matches!(error, CommandLineError::Refused { .. }),
                "{user}: {error}"
            );
        }
    }

    #[test]
    fn ignores_options_for_init() {
        for user in ["quiet -- reboot=t", "a=\"x reboot=t\"", "noreboot=t"] {
            assert!(compose_for(user).is_ok(), "{user}");
        }
    }

    #[test]
    fn refuses_odd_characters() {
        // The kernel takes byte 0xa0, the second of "\u{e0}", for a space.
        let cases = [
            ("a\nb", 1),
            ("\0", 0),
            ("root=/dev/x\r", 11),
            ("\u{e0}reboot=t", 0),
        ];
        for (user, at) in cases {
            let error = compose_for(user).unwrap_err();
            let found =
                matches!(error, CommandLineError::InvalidCharacter { offset, .. } if offset == at);
            assert!(found, "{user:?}: {error}");
        }
    }

    #[test]
    fn reports_the_excess_length() {
        let own = compose_for("").unwrap().len();
        assert!(compose(&FACTS, "abc", own + 4).is_ok());
        let error = compose(&FACTS, "abc", own + 1).unwrap_err();
        assert!(error.to_string().ends_with("shorten it by 3"), "{error}");
    }

    #[test]
    fn options_are_unique_and_have_reasons() {
        for (index, option) in OPTIONS.iter().enumerate() {
            assert!(!option.why.is_empty());
            assert!(
                OPTIONS[..index]
                    .iter()
                    .all(|other| other.name != option.name)
            );
        }
    }

    proptest! {
        /// Any user text is refused or leaves the fixed options in force.
        #[test]
        fn fixed_options_stay_in_force(user in "(reboot|panic|pci|acpi|foo|--|\"| |=|\t|-|a|\n){0,20}") {
            if let Ok(line) = compose_for(&user) {
                prop_assert!(line.starts_with("tsc_early_khz=2400000 "));
                prop_assert!(user.contains("panic") || line.ends_with(user.trim()));
                let options = kernel_words(&line);
                let reboots = options.iter().filter(|word| name(word) == "reboot").collect::<Vec<_>>();
                prop_assert_eq!(reboots, vec![&"reboot=a"]);
                prop_assert!(!line.contains(['\0', '\n']));
            }
        }
    }
}
