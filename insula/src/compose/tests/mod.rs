//! Files against machines that are none.

mod fake;
mod planning;
mod refusals;
mod schema;
