//! Programs on nodes.
//!
//! | module | concept |
//! |---|---|
//! | [`agent`] | programs in Linux nodes, run by the agent there |
//! | [`container`] | containers in Linux nodes: started, listed, stopped by their names |
//! | [`upgrade`] | another kernel under the containers of a node |
//! | [`program`] | programs of the base on nodes of the lightweight kernel |

pub mod agent;
pub mod container;
pub mod program;
pub mod upgrade;

/// First argument of the program `insula-proxy` by which it executes another one with another root, `--root DESCRIPTOR WORD...`:
/// that of an inherited descriptor of a folder.
pub const IN_ROOT: &str = "--root";
