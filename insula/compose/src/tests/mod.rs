//! Compose files against simulated machines.

mod attachments;
mod fake;
mod planning;
mod refusals;
mod schema;
