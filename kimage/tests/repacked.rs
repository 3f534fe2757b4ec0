//! Compressions that Debian's kernels do not use at present: one of theirs is compressed again by
//! the programs, and with the options, that the kernel's build uses (scripts/Makefile.lib:
//! `cmd_gzip`, `cmd_bzip2`, `cmd_lzma`, `cmd_xzmisc`), and put back into its bzImage.

mod fetched;

use kimage::{inspect, vmlinux};
use std::io::Write;
use std::process::{Command, Stdio};

/// Name, command line, and whether the build appends the decompressed size. Only the compression
/// level differs: the build's takes minutes.
const PACKERS: [(&str, &[&str], bool); 4] = [
    ("gzip", &["gzip", "-n", "-f", "-1"], false),
    ("bzip2", &["bzip2", "-1"], true),
    (
        "lzma",
        &["xz", "--format=lzma", "--lzma1=preset=0,dict=32MiB"],
        true,
    ),
    (
        "xz",
        &[
            "xz",
            "--check=crc32",
            "--x86",
            "--lzma2=preset=0,dict=32MiB",
        ],
        true,
    ),
];

/// Fields of the header: Documentation/arch/x86/boot.rst of the kernel.
const SETUP_SECTORS: usize = 0x1f1;
const SYSSIZE: usize = 0x1f4;
const PAYLOAD_OFFSET: usize = 0x248;
const PAYLOAD_LENGTH: usize = 0x24c;

#[test]
fn output_of_the_standard_programs_is_decompressed() {
    // One kernel is enough: only the compression matters.
    let kernels = fetched::kernels();
    let Some(path) = kernels.iter().min() else {
        return;
    };
    let file = std::fs::read(path).unwrap();
    let elf = vmlinux(&file).unwrap();
    let original = inspect(&file).unwrap();
    for (name, words, sized) in PACKERS {
        let mut payload = pack(words, &elf);
        if sized {
            payload.extend((elf.len() as u32).to_le_bytes());
        }
        let repacked = replace_payload(&file, &payload);
        assert_eq!(vmlinux(&repacked).unwrap(), elf, "{name}");
        assert_eq!(inspect(&repacked).unwrap().release, original.release);
    }
}

fn pack(words: &[&str], bytes: &[u8]) -> Vec<u8> {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).arg("--stdout");
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command
        .spawn()
        .unwrap_or_else(|error| panic!("`make deps` installs {}: {error}", words[0]));
    let mut input = child.stdin.take().unwrap();
    let output = std::thread::scope(|scope| {
        scope.spawn(move || input.write_all(bytes).unwrap());
        child.wait_with_output().unwrap()
    });
    assert!(output.status.success(), "{words:?}");
    output.stdout
}

/// The bzImage with another payload, and its header adjusted. Data after the payload is kept.
fn replace_payload(file: &[u8], payload: &[u8]) -> Vec<u8> {
    let u32_at = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap()) as usize;
    let protected_mode = (usize::from(file[SETUP_SECTORS]) + 1) * 512;
    let protected_mode_end = protected_mode + u32_at(SYSSIZE) * 16;
    let start = protected_mode + u32_at(PAYLOAD_OFFSET);
    let end = start + u32_at(PAYLOAD_LENGTH);

    let mut new = file[..start].to_vec();
    new.extend(payload);
    new.extend(&file[end..protected_mode_end]);
    new.resize(
        protected_mode + (new.len() - protected_mode).next_multiple_of(16),
        0,
    );
    let size = (new.len() - protected_mode) / 16;
    new[SYSSIZE..SYSSIZE + 4].copy_from_slice(&(size as u32).to_le_bytes());
    new[PAYLOAD_LENGTH..PAYLOAD_LENGTH + 4].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    new
}
