#!/bin/sh
# Starts one sentinel, beside one Redis. What it has learnt stays in its file; the variables are
# those of start-redis.sh.
set -eu
unset REDISCLI_AUTH
folder=${DATA:-/data} port=${PORT:-6379} sentinel_port=${SENTINEL_PORT:-26379}
conf=$folder/sentinel.conf

if [ ! -s "$conf" ]; then
    primary=""
    for node in $NODES; do
        found=$(timeout 3 valkey-cli -h "$node" -p "$sentinel_port" --raw \
            SENTINEL GET-MASTER-ADDR-BY-NAME parley 2>/dev/null | head -n 1) || found=""
        for known in $NODES; do
            [ "$found" != "$known" ] || primary=${primary:-$known}
        done
    done
    primary=${primary:-${NODES%% *}}
    # shellcheck disable=SC2086  # as many words as there are nodes
    set -- $NODES
    umask 077
    {
        echo "port $sentinel_port"
        echo "dir $folder"
        echo "bind ${BIND:-*}"
        echo "protected-mode no"
        echo "sentinel resolve-hostnames yes"
        echo "sentinel announce-hostnames yes"
        echo "sentinel announce-ip $HOST"
        echo "sentinel monitor parley $primary $port $(($# / 2 + 1))"
        echo "sentinel auth-pass parley $REDIS_PASSWORD"
        echo "sentinel down-after-milliseconds parley ${DOWN_AFTER_MS:-5000}"
        echo "sentinel failover-timeout parley ${FAILOVER_TIMEOUT_MS:-30000}"
        echo "sentinel parallel-syncs parley 1"
    } >"$conf.new"
    mv "$conf.new" "$conf"
fi
exec valkey-server "$conf" --sentinel
