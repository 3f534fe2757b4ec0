//! Manual pages, generated from the command line's definition: one for the command and one for each
//! subcommand.

use std::fs;
use std::io;
use std::path::Path;

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use insula_base::error::Error;
use insula_server::programs;

use super::examples::{self, Example};

/// Name of the manual.
const MANUAL: &str = "Insula";
const SECTION: &str = "1";
/// The page of the command itself.
const COMMAND: &str = "insula";

const EXIT_STATUS: [(&str, &str); 3] = [
    ("0", "Success."),
    (
        "1",
        "The command was refused, or failed. The message says what failed, what was left \
         unchanged, and what to do.",
    ),
    ("2", "Invalid command line. Nothing was done."),
];

/// Of commands that exit with the status of a program.
const EXIT_STATUS_OF_PROGRAM: [(&str, &str); 5] = [
    (
        "that of the program",
        "The program exited. If signal N killed it: 128 + N.",
    ),
    ("125", "Insula failed. The message says why."),
    ("126", "The program cannot be executed."),
    ("127", "The program was not found."),
    ("2", "Invalid command line. Nothing was done."),
];

/// Commands that exit with the status of a program.
const RUN_PROGRAMS: [&str; 3] = ["insula-attach", "insula-console", "insula-exec"];
/// The command that does so if it is given a program for a node of its own, or attaches to a node's program.
const RUNS_ONE: &str = "insula-run";

/// The exit statuses of a command.
fn exit_status(page: &str) -> Vec<(&'static str, &'static str)> {
    match page {
        page if RUN_PROGRAMS.contains(&page) => EXIT_STATUS_OF_PROGRAM.to_vec(),
        RUNS_ONE => {
            let more = (
                "others",
                "With -i or -t, and with the image lwk and a program: as for insula exec.",
            );
            EXIT_STATUS.into_iter().chain([more]).collect()
        }
        _ => EXIT_STATUS.to_vec(),
    }
}

const FILES: [(&str, &str); 2] = [
    ("/dev/insula", "The module's device. Only root may open it."),
    (
        "/boot/vmlinuz-*, /boot/initrd.img-*",
        "Installed kernels, from which images are made by release.",
    ),
];

fn not_written(path: &Path, error: io::Error) -> Error {
    Error::new(format!("{} cannot be written", path.display()))
        .because(error)
        .leaving("pages written so far are kept")
        .hint("name an existing, writable folder")
}

/// Writes all pages of `definition`, and those of the programs that are servers on nodes, to `folder`.
pub(super) fn write(definition: Command, folder: &Path) -> Result<(), Error> {
    for page in all_pages(definition) {
        let path = folder.join(page.file);
        fs::write(&path, page.text).map_err(|error| not_written(&path, error))?;
    }
    Ok(())
}

/// A manual page.
struct Page {
    /// Name of the file, as `insula-run.1`.
    file: String,
    text: Vec<u8>,
}

fn all_pages(definition: Command) -> Vec<Page> {
    let servers = programs::definitions().into_iter().flat_map(pages);
    pages(definition).into_iter().chain(servers).collect()
}

fn pages(definition: Command) -> Vec<Page> {
    let mut definition = definition.disable_help_subcommand(true);
    definition.build();
    let mut pages = Vec::new();
    collect(&definition, None, &mut pages);
    pages
}

fn collect(command: &Command, parent: Option<&Command>, pages: &mut Vec<Page>) {
    let mut text = Vec::new();
    // Writing to memory does not fail.
    if render(command, parent, &mut text).is_ok() {
        let file = format!("{}.{SECTION}", page_name(command));
        pages.push(Page { file, text });
    }
    for child in visible_children(command) {
        collect(child, Some(command), pages);
    }
}

fn visible_children(command: &Command) -> impl Iterator<Item = &Command> {
    let children = command.get_subcommands();
    children.filter(|child| !child.is_hide_set())
}

/// Name of a command's page, as `insula-run`.
fn page_name(command: &Command) -> &str {
    command
        .get_display_name()
        .unwrap_or_else(|| command.get_name())
}

fn render(command: &Command, parent: Option<&Command>, into: &mut Vec<u8>) -> io::Result<()> {
    let man = Man::new(command.clone())
        .section(SECTION)
        .source(concat!("insula ", env!("CARGO_PKG_VERSION")))
        .manual(MANUAL);
    man.render_title(into)?;
    man.render_name_section(into)?;
    man.render_synopsis_section(into)?;
    man.render_description_section(into)?;
    if command.get_arguments().any(|one| !one.is_hide_set()) {
        man.render_options_section(into)?;
    }
    if visible_children(command).next().is_some() {
        man.render_subcommands_section(into)?;
    }
    let examples = examples::of(page_name(command));
    let mut roff = Roff::new();
    show_examples(&mut roff, examples);
    definitions(&mut roff, "EXIT STATUS", &exit_status(page_name(command)));
    if page_name(command) == COMMAND {
        definitions(&mut roff, "FILES", &FILES);
    }
    see_also(&mut roff, command, parent, examples);
    roff.to_writer(into)
}

fn show_examples(roff: &mut Roff, examples: &[Example]) {
    if examples.is_empty() {
        return;
    }
    roff.control("SH", ["EXAMPLES"]);
    for example in examples {
        roff.control("PP", []);
        roff.text([roman(format!("{}:", example.what))]);
        roff.control("PP", [])
            .control("RS", ["4"])
            .control("nf", []);
        for line in example.lines {
            roff.text([roman(*line)]);
        }
        roff.control("fi", []).control("RE", []);
    }
}

fn definitions(roff: &mut Roff, heading: &str, terms: &[(&str, &str)]) {
    roff.control("SH", [heading]);
    for (term, meaning) in terms {
        roff.control("TP", []);
        roff.text([bold(*term)]).text([roman(*meaning)]);
    }
}

/// Writes the references: the parent command, the subcommands, and the commands in the examples.
fn see_also(roff: &mut Roff, command: &Command, parent: Option<&Command>, examples: &[Example]) {
    let own = page_name(command);
    let mut names: Vec<_> = parent
        .map(page_name)
        .into_iter()
        .map(str::to_owned)
        .collect();
    if parent.is_none() && own != COMMAND {
        // A server.
        names.push("insula-servers".to_owned());
    }
    names.extend(visible_children(command).map(|child| page_name(child).to_owned()));
    names.extend(examples.iter().flat_map(Example::pages));
    names.retain(|name| name != own);
    names.sort();
    names.dedup();
    roff.control("SH", ["SEE ALSO"]);
    let mut line = Vec::new();
    for (index, name) in names.iter().enumerate() {
        if index > 0 {
            line.push(roman(", "));
        }
        line.extend([bold(name.as_str()), roman(format!("({SECTION})"))]);
    }
    roff.text(line);
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use std::collections::BTreeSet;
    use std::process;

    fn all() -> Vec<Page> {
        all_pages(super::super::cli::Cli::command())
    }

    fn text(page: &Page) -> String {
        String::from_utf8(page.text.clone()).unwrap()
    }

    #[test]
    fn each_command_has_a_page() {
        let files: Vec<_> = all().into_iter().map(|page| page.file).collect();
        for name in [
            "insula",
            "insula-run",
            "insula-machine",
            "insula-machine-check",
            "insula-files",
            "insula-files-ext4",
            "insula-blocks",
            "insula-network",
        ] {
            assert!(files.contains(&format!("{name}.1")), "{name}: {files:?}");
        }
        assert!(!files.contains(&"insula-man.1".to_owned()));
    }

    #[test]
    fn what_a_page_refers_to_exists() {
        let pages = all();
        let files: BTreeSet<_> = pages.iter().map(|page| page.file.clone()).collect();
        for page in &pages {
            let text = text(page);
            let (_, others) = text.split_once(".SH \"SEE ALSO\"\n").unwrap();
            for other in others.split(", ") {
                let name = other
                    .replace("\\fB", "")
                    .replace("\\fR", "")
                    .replace("\\-", "-");
                let file = name.trim().replace("(1)", ".1");
                assert!(files.contains(&file), "{} refers to {file}", page.file);
            }
        }
    }

    #[test]
    fn a_page() {
        let pages = all();
        let page = pages
            .iter()
            .find(|page| page.file == "insula-machine-reserve.1");
        let text = text(page.unwrap()).replace(env!("CARGO_PKG_VERSION"), "VERSION");
        insta::assert_snapshot!(text);
    }

    #[test]
    fn commands_that_exit_as_their_program_say_so() {
        for page in all() {
            let pages = ["insula-attach.1", "insula-console.1", "insula-exec.1"];
            let of_program = pages.contains(&page.file.as_str());
            assert_eq!(text(&page).contains("128 + N"), of_program, "{}", page.file);
        }
    }

    /// man(1) itself reports no warnings.
    #[test]
    fn pages_are_well_formed() {
        let folder = tempfile::tempdir().unwrap();
        write(super::super::cli::Cli::command(), folder.path()).unwrap();
        for entry in fs::read_dir(folder.path()).unwrap() {
            let path = entry.unwrap().path();
            let output = process::Command::new("man")
                .args(["--warnings", "--encoding=UTF-8", "--local-file"])
                .arg(&path)
                .env("MANROFFSEQ", "")
                .env("MANWIDTH", "80")
                .output()
                .expect("`make deps` installs man-db");
            let warnings = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(
                output.status.success() && warnings.is_empty(),
                "{path:?}: {warnings}"
            );
        }
    }
}
