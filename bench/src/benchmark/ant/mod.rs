//! Servers spread over the cores of a node, as the AnT paper has them: application (A), file server (F) and block
//! server (B), each with a core of its own or together.

mod bonnie;
mod bonnieplus;
mod data;
mod line;
mod net;
mod path;
mod placement;
mod postmark;
mod read;
mod servers;
mod site;
mod table;

pub(super) use bonnie::BENCHMARK as BONNIE;
pub(super) use bonnieplus::BENCHMARK as BONNIE_PLUS;
pub(super) use data::BENCHMARK as DATA;
pub(super) use net::BENCHMARK as NET;
pub(super) use path::BENCHMARK as PATH;
pub(super) use postmark::BENCHMARK as POSTMARK;
pub(super) use read::BENCHMARK as READ;
