//! PostgreSQL: processes that share memory, under pgbench. All transactions succeed, and in the end all
//! balances are the sums of all changes.

use std::fs;
use std::process::Command;
use std::time::Duration;

use super::{Client, start as start_container};
use crate::base::Finding;
use crate::base::support::insula_command::{assert_equal, insula, wait_at_most};

pub(super) const NAME: &str = "postgresql";
/// Where the base makes a database with little memory: under emulation that takes minutes in a node of one core.
const PREPARED: &str = "/var/tmp/services";
const PREPARE: &str = r#"
export PATH="/usr/lib/postgresql/15/bin:$PATH" PGDATA=/var/tmp/services/data
initdb --locale=C --encoding=UTF8 --auth=trust --wal-segsize=1 --no-instructions --no-sync
echo 'host all all 0.0.0.0/0 trust' >> "$PGDATA/pg_hba.conf"
"#;
/// Takes the database into the container's own memory, and becomes its server.
const PROGRAM: &str = r#"
export PATH="/usr/lib/postgresql/15/bin:$PATH" PGDATA=/tmp/data
cp -a /var/tmp/services/data /tmp
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
/// Within what time it serves.
const START_TIMEOUT: Duration = Duration::from_secs(240);
const FOLDER: &str = "/usr/lib/postgresql/15/bin";
/// Sums of the balances, each beside that of the changes.
const SUMS: &str = "select
    (select sum(abalance) from pgbench_accounts) = (select sum(delta) from pgbench_history),
    (select sum(bbalance) from pgbench_branches) = (select sum(delta) from pgbench_history),
    (select sum(tbalance) from pgbench_tellers) = (select sum(delta) from pgbench_history)";

/// Makes a database on the base, before the nodes start.
pub(super) fn prepare() -> Result<(), Finding> {
    fs::create_dir_all(PREPARED)?;
    let owned = Command::new("chown")
        .args(["postgres:postgres", PREPARED])
        .status()?;
    Finding::unless(owned.success(), || "its folder has no owner".into())?;
    let [program, words @ ..] = AS_USER;
    let made = Command::new(program).args(words).arg(PREPARE).output()?;
    Finding::unless(made.status.success(), || {
        String::from_utf8_lossy(&made.stderr).into_owned()
    })
}

/// Removes it.
pub(super) fn clean_up() -> Result<(), Finding> {
    Ok(fs::remove_dir_all(PREPARED)?)
}

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
            "5",
        ];
        let told = run("pgbench", &address, &load)?;
        let all = told.contains("processed: 20/20") && told.contains("failed transactions: 0 ");
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
