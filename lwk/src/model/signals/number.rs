//! Numbers of the signals that the kernel handles specially.

#![expect(missing_docs, reason = "they are the usual names")]

pub const QUIT: u32 = 3;
pub const ILL: u32 = 4;
pub const TRAP: u32 = 5;
pub const ABRT: u32 = 6;
pub const BUS: u32 = 7;
pub const FPE: u32 = 8;
pub const KILL: u32 = 9;
pub const SEGV: u32 = 11;
pub const PIPE: u32 = 13;
pub const CHLD: u32 = 17;
pub const CONT: u32 = 18;
pub const STOP: u32 = 19;
pub const TSTP: u32 = 20;
pub const TTIN: u32 = 21;
pub const TTOU: u32 = 22;
pub const URG: u32 = 23;
pub const XCPU: u32 = 24;
pub const XFSZ: u32 = 25;
pub const WINCH: u32 = 28;
pub const SYS: u32 = 31;
