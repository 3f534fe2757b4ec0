//! Results of system calls as words of a reply.

use nix::errno::Errno;

use crate::Words;

/// Returns the words for a result.
pub(super) fn words(result: Result<u64, Errno>) -> Words {
    let mut words = Words::default();
    words[0] =
        result.unwrap_or_else(|error| i64::from(error as i32).cast_unsigned().wrapping_neg());
    words
}
