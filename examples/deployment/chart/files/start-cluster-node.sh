#!/bin/sh
# Starts one node of a Redis cluster. NODES names the hosts of all, ADDRESS is this one's.
#
# A node that was in the cluster before greets the others by their names: their addresses, and its
# own, may be new after a restart of all.
set -eu
folder=${DATA:-/data} port=${PORT:-6379}

greet() {
    sleep 2
    for node in $NODES; do
        address=$(getent hosts "$node" | cut -d " " -f 1 | head -n 1)
        timeout 3 valkey-cli -h "$ADDRESS" -p "$port" CLUSTER MEET "${address:-$node}" "$port" || true
    done
}

umask 077
{
    cat "${CONFIG:-/etc/parley-redis/redis.conf}"
    echo "port $port"
    echo "dir $folder"
    echo "bind ${BIND:-*}"
    echo "requirepass $REDIS_PASSWORD"
    echo "masterauth $REDIS_PASSWORD"
    echo "cluster-enabled yes"
    echo "cluster-config-file nodes.conf"
    echo "cluster-node-timeout 5000"
    echo "cluster-announce-ip $ADDRESS"
    echo "cluster-require-full-coverage no"
    [ -z "${MAXMEMORY:-}" ] || echo "maxmemory $MAXMEMORY"
} >"$folder/redis.conf"
export REDISCLI_AUTH="$REDIS_PASSWORD"
if [ "$(grep -c connected "$folder/nodes.conf" 2>/dev/null || true)" -gt 1 ] 2>/dev/null; then
    greet &
fi
exec valkey-server "$folder/redis.conf"
