#!/bin/sh
# Two boxes on this machine that share a store and a database, behind one address: `make cluster`.
#
# Starts Redis, PostgreSQL, two hearths on the default model and HAProxy on loopback, in a temporary folder, prints what
# runs where, and ends everything with Ctrl-C.
#
# Environment: MODEL (a GGUF file; default: SmolLM2), PORT (default 8000; the boxes have the two behind it, and the store
# the one behind those), ARGS (further options of both boxes), HEARTH_BIN (a program that is built already).
set -eu

cd "$(dirname "$0")/.."
. scripts/lib.sh

scripts/setup.sh servers
program=${HEARTH_BIN:-$(scripts/build.sh hearth)/hearth}
model=${MODEL:-}
[ -n "$model" ] || [ "${ARGS:-}" != "${ARGS#*--engine sim}" ] || model=$(scripts/models.sh smollm2)
port=${PORT:-8000}
store=$((port + 3))
folder=$(mktemp -d)
pids=

finish() {
    trap - EXIT INT TERM
    [ -z "$pids" ] || kill $pids 2>/dev/null || :
    wait
    rm -rf "$folder"
}
trap finish EXIT
trap 'exit 0' INT TERM

# Debian's redis-tools has the server under another name; it goes by the name that it is started with.
ln -s "$(command -v redis-check-rdb)" "$folder/redis-server"
"$folder/redis-server" --bind 127.0.0.1 --port $store --save '' --dir "$folder" --maxmemory 1gb \
    --maxmemory-policy allkeys-lru >"$folder/redis.log" 2>&1 &
pids="$pids $!"
# PostgreSQL refuses to run as root. It listens on a socket in the folder, for this user (or root) alone.
postgres=$(ls -d /usr/lib/postgresql/*/bin | sort -V | tail -n 1)
mkdir "$folder/pg"
as=
if [ "$(id -u)" = 0 ]; then
    chmod 711 "$folder"
    chown postgres: "$folder/pg"
    as="setpriv --reuid postgres --regid postgres --clear-groups"
fi
(
    cd "$folder/pg"
    $as "$postgres/initdb" -D "$folder/pg/data" -U hearth -A trust -E UTF8 --no-sync --no-instructions >/dev/null
)
chmod 700 "$folder/pg"
$as "$postgres/postgres" -D "$folder/pg/data" -c listen_addresses= -c unix_socket_directories="$folder/pg" \
    >"$folder/postgres.log" 2>&1 </dev/null &
pids="$pids $!"
database="postgresql:///postgres?host=$folder/pg&user=hearth"
until "$postgres/pg_isready" -q -h "$folder/pg"; do
    kill -0 $! 2>/dev/null || { tail -n 5 "$folder/postgres.log" >&2; die "PostgreSQL did not start"; }
    sleep 0.2
done
for box in 1 2; do
    # ARGS holds several options.
    "$program" serve ${model:+--model "$model"} --port $((port + box)) --kv-dir "$folder/kv$box" \
        --session-db "$database" --kv-remote "redis://127.0.0.1:$store" ${ARGS:-} \
        >"$folder/box$box.log" 2>&1 &
    pids="$pids $!"
done
sed -e "s/bind :8000/bind 127.0.0.1:$port/" -e "s/10.0.0.1:8080/127.0.0.1:$((port + 1))/" \
    -e "s/10.0.0.2:8080/127.0.0.1:$((port + 2))/" contrib/haproxy/hearth.cfg >"$folder/haproxy.cfg"
haproxy -db -f "$folder/haproxy.cfg" >"$folder/haproxy.log" 2>&1 &
pids="$pids $!"

say "waiting for both boxes"
for box in 1 2; do
    until curl -sf "http://127.0.0.1:$((port + box))/health" >/dev/null; do
        for pid in $pids; do
            kill -0 "$pid" 2>/dev/null || { tail -n 5 "$folder"/*.log >&2; die "one of them did not start"; }
        done
        sleep 0.2
    done
done
cat <<TEXT
agents     http://127.0.0.1:$port/v1    (HAProxy: a conversation stays on its box)
box 1      http://127.0.0.1:$((port + 1))
box 2      http://127.0.0.1:$((port + 2))
store      redis://127.0.0.1:$store    (redis-cli -p $store monitor)
database   $database
logs       $folder
Ctrl-C ends all of it.
TEXT
wait
