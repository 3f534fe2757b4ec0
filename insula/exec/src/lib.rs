//! Programs on nodes.
//!
//! | module | concept |
//! |---|---|
//! | [`agent`] | programs in Linux nodes, run by the agent there |
//! | [`program`] | programs of the base on nodes of the lightweight kernel |

pub mod agent;
pub mod program;
