#!/bin/sh
# Starts one Redis of several that sentinels watch: the primary, or a replica of it.
#
# NODES names the hosts of all, the first of which is the primary until the sentinels have chosen
# another; HOST is which of them this is. All have the same REDIS_PASSWORD.
set -eu
unset REDISCLI_AUTH  # sentinels have no password here, and say so
folder=${DATA:-/data} port=${PORT:-6379} sentinel_port=${SENTINEL_PORT:-26379}

# The primary: whom a sentinel names that runs; else whom ours has named last, as after a power cut.
named() {
    for node in $NODES; do
        found=$(timeout 3 valkey-cli -h "$node" -p "$sentinel_port" --raw \
            SENTINEL GET-MASTER-ADDR-BY-NAME parley 2>/dev/null | head -n 1) || found=""
        for known in $NODES; do
            if [ "$found" = "$known" ]; then echo "$found"; return; fi
        done
    done
    sed -n 's/^sentinel monitor parley \([^ ]*\) .*/\1/p' "$folder/sentinel.conf" 2>/dev/null || true
}

primary=$(named)
primary=${primary:-${NODES%% *}}
umask 077
{
    cat "${CONFIG:-/etc/parley-redis/redis.conf}"
    echo "port $port"
    echo "dir $folder"
    echo "bind ${BIND:-*}"
    echo "replica-announce-ip $HOST"
    echo "requirepass $REDIS_PASSWORD"
    echo "masterauth $REDIS_PASSWORD"
    [ -z "${MAXMEMORY:-}" ] || echo "maxmemory $MAXMEMORY"
    [ "$primary" = "$HOST" ] || echo "replicaof $primary $port"
} >"$folder/redis.conf"
exec valkey-server "$folder/redis.conf"
