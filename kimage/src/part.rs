//! Parts of a kernel image's file, with errors that name the missing one.

use crate::bytes;
use crate::error::ImageError;

/// Longest release of a kernel: `__NEW_UTS_LEN` of include/uapi/linux/utsname.h.
const RELEASE_MAX: usize = 64;

/// The release at the start of `text`: its first word.
pub(crate) fn leading_release(text: &[u8]) -> Result<String, ImageError> {
    let word = text
        .iter()
        .take(RELEASE_MAX + 1)
        .take_while(|byte| byte.is_ascii_graphic());
    let release: String = word.map(|&byte| char::from(byte)).collect();
    if release.is_empty() || release.len() > RELEASE_MAX {
        return Err(ImageError::Malformed {
            what: "it has no release",
        });
    }
    Ok(release)
}

/// The part `start..start + size` of `file`, or an error with the part's name.
pub(crate) fn part<'a>(
    file: &'a [u8],
    what: &'static str,
    start: u64,
    size: u64,
) -> Result<&'a [u8], ImageError> {
    let end = start.saturating_add(size);
    let range = usize::try_from(start).ok().zip(usize::try_from(end).ok());
    range
        .and_then(|(start, end)| file.get(start..end))
        .ok_or(ImageError::Truncated {
            what,
            needed: end,
            size: bytes::length(file),
        })
}
