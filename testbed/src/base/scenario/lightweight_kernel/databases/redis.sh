# redis with $1 keys saves a dump from a forked child, and meanwhile changes many of them. The dump
# must have what there was at the fork.
keys=$1

client() {
	redis-cli -s "$PWD/socket" "$@"
}

saved() {
	client info persistence | tr -d '\r' | grep -E 'rdb_bgsave_in_progress|rdb_last_bgsave_status'
}

start() {
	redis-server --port 0 --unixsocket "$PWD/socket" --dir "$PWD" --save '' \
		--enable-debug-command yes --logfile "$PWD/log" &
	server=$!
	until [ "$(client ping 2> errors)" = PONG ]; do
		sleep 0.1
	done
}

start
client debug populate "$keys" key 4096
client debug digest
# The child waits after each key, in us.
client config set rdb-key-save-delay 500
client bgsave
client eval "for i = 0, $keys / 2 do redis.call('set', 'key:' .. 2 * i, 'changed') end" 0
saved
# It reads a new delay after some keys, so that only the first ones take long.
client config set rdb-key-save-delay 0
until saved | grep -q in_progress:0; do
	sleep 0.1
done
saved
client shutdown nosave
wait "$server"
start
client debug digest
client dbsize
client shutdown nosave
wait "$server"
# Its warnings, without processes' ids and times.
sed -n 's/^.* # \(WARNING.*\)/\1/p' log
