//! PostgreSQL: processes that share memory, under pgbench. All transactions succeed, and in the end all
//! balances are the sums of all changes.

use std::process::Command;
use std::time::Duration;

use super::{Client, start as start_container};
use crate::base::Finding;
use crate::base::support::insula_command::{assert_equal, insula, wait_at_most};

pub(super) const NAME: &str = "postgresql";
/// Makes a database in the container's own memory, with little of it, and becomes its server.
const PROGRAM: &str = r#"
export PATH="/usr/lib/postgresql/15/bin:$PATH" PGDATA=/tmp/data
initdb --locale=C --encoding=UTF8 --auth=trust --wal-segsize=1 --no-instructions
echo 'host all all 0.0.0.0/0 trust' >> /tmp/data/pg_hba.conf
exec postgres -c listen_addresses=0.0.0.0 -c unix_socket_directories=/tmp \
	-c min_wal_size=2MB -c max_wal_size=8MB -c shared_buffers=8MB
"#;
const AS_USER: [&str; 6] = [
    "setpriv",
    "--reuid=postgres",
    "--regid=postgres",
    "--clear-groups",
    "sh",
    "-ec",
];
/// Within what time it has made its database.
const START_TIMEOUT: Duration = Duration::from_secs(240);
const FOLDER: &str = "/usr/lib/postgresql/15/bin";
/// Sums of the balances, each beside that of the changes.
const SUMS: &str = "select
    (select sum(abalance) from pgbench_accounts) = (select sum(delta) from pgbench_history),
    (select sum(bbalance) from pgbench_branches) = (select sum(delta) from pgbench_history),
    (select sum(tbalance) from pgbench_tellers) = (select sum(delta) from pgbench_history)";

pub(super) fn start(node: &str) -> Result<Client, Finding> {
    let address = start_container(NAME, node, &[&AS_USER[..], &[PROGRAM]].concat())?;
    let served = wait_at_most(START_TIMEOUT, "PostgreSQL to serve", || {
        Ok(query(&address, "select 1").ok())
    });
    served.map_err(|error| match insula(&["logs", NAME]) {
        Ok(log) => error.when(&log),
        Err(_) => error,
    })?;
    run(
        "pgbench",
        &address,
        &["--initialize", "--quiet", "--scale", "1"],
    )?;
    Ok(Client::start(NAME, move |_| {
        let load = [
            "--no-vacuum",
            "--client",
            "4",
            "--jobs",
            "2",
            "--transactions",
            "20",
        ];
        let told = run("pgbench", &address, &load)?;
        let all = told.contains("processed: 80/80") && told.contains("failed transactions: 0 ");
        Finding::unless(all, || told)
    }))
}

/// The database is consistent.
pub(super) fn has_all(address: &str) -> Result<(), Finding> {
    assert_equal("the sums", &query(address, SUMS)?.trim(), &"t|t|t")?;
    let count = query(address, "select count(*) from pgbench_history")?;
    println!("PostgreSQL: {} transactions", count.trim());
    Ok(())
}

fn query(address: &str, what: &str) -> Result<String, Finding> {
    let plain = [
        "--quiet",
        "--no-align",
        "--tuples-only",
        "--no-psqlrc",
        "--command",
        what,
    ];
    run("psql", address, &plain)
}

fn run(program: &str, address: &str, words: &[&str]) -> Result<String, Finding> {
    let output = Command::new(format!("{FOLDER}/{program}"))
        .args(["--host", address, "--username", "postgres"])
        .args(words)
        .env("PGDATABASE", "postgres")
        .output()?;
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    Finding::unless(output.status.success(), || {
        format!(
            "{program}: {told}{}",
            String::from_utf8_lossy(&output.stderr)
        )
    })?;
    Ok(told)
}
