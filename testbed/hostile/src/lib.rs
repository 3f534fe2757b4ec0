//! A kernel that attacks the machine it runs on: what a confined node must be able to do without harm
//! to anybody else.
//!
//! It is started like any kernel, on up to two cores, and then waits for its [`orders`]: a page of its
//! memory into which the test writes a seed, and what is worth attacking. Everything it does follows
//! from the seed.
//!
//! ```text
//! each core:  some hundred acts that a node may do, or that only hurt itself       (attack::pass)
//!             then acts that a node must not do, until one ends it                 (attack::break_out)
//! the end:    a triple fault
//! ```
//!
//! An act that faults is given up: [`trap::attempt`] returns the exception, with the registers that
//! matter put back. What an act breaks beyond that (the page table, the descriptor tables) ends in a
//! triple fault, a reset of the node.
//!
//! | file | what |
//! |---|---|
//! | [`orders`] | the page shared with the test |
//! | [`random`] | numbers that follow from the seed |
//! | [`start`] | entry, page table, the second core |
//! | [`trap`] | exceptions and interrupts |
//! | [`attack`] | the acts, a file for each kind |
//!
//! The crate compiles for any x86-64 host, without the assembly, for its tests and for the test that
//! writes the orders.

#![cfg_attr(not(test), no_std)]
#![allow(unsafe_code, reason = "nothing that this kernel does is safe")]

pub mod attack;
pub mod orders;
pub mod random;
pub mod start;
pub mod trap;

#[cfg(target_os = "none")]
mod assembly {
    core::arch::global_asm!(include_str!("trap.S"), options(att_syntax));
}
