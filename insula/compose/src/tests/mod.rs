//! Compose files against simulated machines.

mod attachments;
mod fake;
mod networks;
mod planning;
mod refusals;
mod schema;
