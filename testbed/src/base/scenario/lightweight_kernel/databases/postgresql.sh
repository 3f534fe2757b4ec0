# PostgreSQL under pgbench, $1 transactions of each of four clients; then a backend is killed, then
# the postmaster amid transactions. After each recovery the sums must be right.
export PATH="/usr/lib/postgresql/15/bin:$PATH" PGHOST="$PWD" PGDATABASE=postgres PGDATA="$PWD/data"
transactions=$1

query() {
	psql --quiet --no-align --tuples-only --no-psqlrc --command "$1"
}

start() {
	pg_ctl start --silent --wait --timeout 300 --log log \
		--options "-c unix_socket_directories=$PWD -c listen_addresses="
}

load() {
	pgbench --no-vacuum --client 4 --jobs 2 --transactions "$1" 2> errors
}

# Whether all balances are the sums of all changes.
sums() {
	query 'select
		(select sum(abalance) from pgbench_accounts) = (select sum(delta) from pgbench_history),
		(select sum(bbalance) from pgbench_branches) = (select sum(delta) from pgbench_history),
		(select sum(tbalance) from pgbench_tellers) = (select sum(delta) from pgbench_history)'
}

transactions_done() {
	query 'select count(*) from pgbench_history'
}

initdb --locale=C --encoding=UTF8 --auth=trust --no-instructions | grep -E 'dynamic|max_conn|buffers'
start
pgbench --initialize --quiet --scale 1 > log.initialize 2>&1
load "$transactions" | grep -E 'processed|failed'

echo 'kill a backend'
query 'select pg_sleep(3600)' 2> errors.killed &
client=$!
sleeping="select pid from pg_stat_activity where wait_event = 'PgSleep'"
until pid=$(query "$sleeping") && [ -n "$pid" ]; do
	sleep 0.1
done
kill -KILL "$pid"
wait "$client" || echo "its client ends with $?"
until query 'select 1' > probe 2>&1; do
	sleep 0.1
done
sums
transactions_done

echo 'kill the postmaster'
before=$(transactions_done)
load 1000000 > log.load &
client=$!
until [ "$(transactions_done)" -gt $((before + transactions)) ]; do
	sleep 0.1
done
kill -KILL "$(head -n 1 data/postmaster.pid)"
wait "$client" || echo "its client ends with $?"
# Until the last of its backends has ended, their shared memory is in use.
until start 2> errors; do
	sleep 0.1
done
sums
[ "$(transactions_done)" -gt $((before + transactions)) ] && echo 'what was committed is there'
grep -c 'automatic recovery in progress' log
query 'vacuum full'
query 'select count(*) from pgbench_accounts'
pg_ctl stop --silent --wait --mode fast
