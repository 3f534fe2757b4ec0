//! The base as Linux shows it in files, and what commands and supervisors keep there.
//!
//! | module | concept |
//! |---|---|
//! | [`root`] | the tree of files that describe the machine |
//! | [`topology`] | processors and memory |
//! | [`lockdown`] | the lockdown mode |
//! | [`storage`] | files and block devices, and who uses them |
//! | [`state`] | locks and atomic files |
//! | [`units`] | sizes, addresses and lists of cores as text |
//! | [`text`] | values that have the same text on the command line and in files |
//! | [`error`] | the one shape of an error that users see |
//! | [`error_text`] | system errors as text |

pub mod error;
pub mod error_text;
pub mod lockdown;
pub mod root;
pub mod state;
pub mod storage;
pub mod text;
pub mod topology;
pub mod units;
