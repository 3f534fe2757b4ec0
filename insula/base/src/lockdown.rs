//! The lockdown mode of the base's kernel (`man kernel_lockdown.7`).

use std::io;

use crate::root::Root;

/// Where Linux shows all modes, the current one in brackets (`security/lockdown/lockdown.c`).
const FILE: &str = "/sys/kernel/security/lockdown";

/// Mode without any restriction.
pub const NONE: &str = "none";

/// The current mode, such as [`NONE`] or `integrity`; the file's text if it marks none.
///
/// # Errors
/// The file cannot be read. A kernel without lockdown has none.
pub fn mode(root: &Root) -> io::Result<String> {
    let text = root.text(FILE)?;
    let marked = text
        .split_whitespace()
        .find_map(|word| word.strip_prefix('[')?.strip_suffix(']'));
    Ok(marked.unwrap_or(&text).to_owned())
}
