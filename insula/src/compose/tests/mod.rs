//! Files against machines that are none.

mod belongings;
mod fake;
mod planning;
mod refusals;
mod schema;
